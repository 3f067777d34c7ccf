"""One member of the cluster ``ledger``, in a process of its own: it notes each request that it runs, and may be killed.

What is written to a file is there after ``kill -9``, so the file says exactly which handlers have begun, and when.
"""

from __future__ import annotations

import os
import sys
import time

import trio

import iris

WIDTH = 8
"""Size of a number in a payload, and of a number and of a moment in the file, in bytes."""

_SLOW = 16
"""One in so many requests takes five milliseconds more, so that there is always work in hand to be lost."""


async def serve(file: str) -> None:
    """Be a member until killed; the file is that of the idempotent requests, the others go to one beside it."""
    idempotent, plain = (os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in (file, file + ".plain"))
    ledger = iris.Service("ledger")

    async def enter(target: int, request: iris.Request) -> bytes:
        payload: bytes = request.payload
        os.write(target, payload + time.monotonic_ns().to_bytes(WIDTH, "big"))
        if int.from_bytes(payload, "big") % _SLOW == 0:
            await trio.sleep(0.005)
        return payload

    @ledger.request("idempotent")
    async def enter_again(request: iris.Request) -> bytes:
        return await enter(idempotent, request)

    @ledger.request("plain")
    async def enter_once(request: iris.Request) -> bytes:
        return await enter(plain, request)

    assert enter_again is not enter_once
    async with iris.open_node() as node, node.join("ledger", ledger):
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(serve, sys.argv[1])
