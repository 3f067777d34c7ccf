"""The service of members that are restarted: ``iris run tests.support.programs.restarted:ledger``.

Each request that begins is noted in the file that ``IRIS_LEDGER`` names.
"""

from __future__ import annotations

import os

import trio

import iris

WIDTH = 8
"""Size of a number, in payloads and in the file, in bytes."""

FILE = "IRIS_LEDGER"

_SLOW = 8
"""One in so many requests takes 50 ms, so that there is always one in progress when a member is stopped."""

_file = os.open(os.environ[FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

ledger = iris.Service("ledger")


@ledger.request
async def enter(request: iris.Request) -> bytes:
    """Note the number that is the payload, and give it back."""
    payload: bytes = request.payload
    os.write(_file, payload)
    if int.from_bytes(payload, "big") % _SLOW == 0:
        await trio.sleep(0.05)
    return payload
