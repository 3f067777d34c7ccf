"""A service that answers with what it was asked: ``iris run tests.support.programs.store:store``."""

from __future__ import annotations

import iris

store = iris.Service("store")


@store.request
async def reply(request: iris.Request) -> object:
    """Answer with what was asked."""
    return request.payload
