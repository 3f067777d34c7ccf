"""Requests as their callers make them, without a node."""

from __future__ import annotations

from collections.abc import Collection

from iris.kernel.names import NodeId
from iris.patterns.picker import Picker
from iris.patterns.request.call import IDEMPOTENT, Call


def call_to(picker: Picker | None, *, idempotent: bool = True, tried: Collection[NodeId] = ()) -> Call:
    """Return a request that members chosen by ``picker`` are asked."""
    return Call(
        cluster="store", name="store", label="store", payload=b"", headers=None, size=0, operation=None, key=None,
        prefer=None, only=None, flags=IDEMPOTENT if idempotent else 0, timeout=60.0, started=0.0, deadline=60.0,
        picker=picker, tried=set(tried),
    )  # fmt: skip
