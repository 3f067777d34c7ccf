"""Forks: what a child keeps of a door for nng."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from tests.doors.nng.place import Place
from tests.support.doors import with_door
from tests.support.forks import bare_fork


def _open_at(addresses: set[str]) -> int:
    """Return how many sockets of this process are at these addresses."""
    count = 0
    for one in Path("/dev/fd").iterdir():
        with suppress(OSError):
            found = socket.socket(fileno=int(one.name))
            count += found.getsockname() in addresses
            found.detach()
    return count


def _left_in_a_child(addresses: set[str]) -> int:
    reading, writing = os.pipe()
    child = bare_fork()
    if not child:
        os.write(writing, bytes((_open_at(addresses),)))
        os._exit(0)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as told, os.fdopen(writing, "wb"):
        return told.read(1)[0]


@with_door()
async def test_a_child_keeps_neither_what_listens_nor_what_was_accepted(place: Place) -> None:
    addresses = {address.removeprefix("ipc://") for address in place.door.addresses.values()}
    async with place.dial("req") as raw, place.dial("sub"):
        await place.connected("sub")
        assert _open_at(addresses) == 6
        assert _left_in_a_child(addresses) == 0
        raw.ask(b"greeters\nx")
        assert (await raw.hear()).endswith(b"200 bytes\nx")  # the parent serves as before
