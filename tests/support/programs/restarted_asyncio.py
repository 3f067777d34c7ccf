"""The service of ``restarted`` in asyncio: ``iris run tests.support.programs.restarted_asyncio:ledger``."""

from __future__ import annotations

import asyncio
import os

import iris.aio

ledger = iris.aio.Service("ledger")

_file = os.open(os.environ["IRIS_LEDGER"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


@ledger.request
async def enter(request: iris.aio.Request) -> bytes:
    """Note the number that is the payload, and give it back; one in 8 takes 50 ms."""
    payload: bytes = request.payload
    os.write(_file, payload)
    if int.from_bytes(payload, "big") % 8 == 0:
        await asyncio.sleep(0.05)
    return payload
