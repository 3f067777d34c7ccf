"""Arguments of requests: options of any kind, put where ``Node.request`` has them."""

from __future__ import annotations

from typing import Any

import iris


def request_arguments(**options: Any) -> dict[str, Any]:
    """Return keywords of ``Node.request``; what ``RequestOptions`` has is put there."""
    own = {name: options.pop(name) for name in iris.RequestOptions.__struct_fields__ if name in options}
    return {**options, "options": iris.RequestOptions(**own)} if own else options
