"""A process of its own that runs a mesh of the test realm: ``python -m tests.support.remote_mesh``.  Prints its URL."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from iris.kernel.config import Config
from iris.kernel.transport.network import NetworkTransport
from tests.support.admission import open_reading_mesh
from tests.support.printing import open_printing
from tests.support.realms import WALL, TestRealm, seeded_entropy


@asynccontextmanager
async def open_far_mesh() -> AsyncIterator[tuple[trio.Process, str]]:
    """Start the process; give it and its URL.  It is killed in the end."""
    async with open_printing("tests.support.remote_mesh") as opened:
        yield opened


async def _main() -> None:
    config = Config()
    transport = NetworkTransport(config)
    (bound,) = await transport.listen(["tcp://127.0.0.1:0"])
    realm = TestRealm(1)
    realm.entropy = seeded_entropy(os.getpid())  # the keys of the realm are the same, those of this node are its own
    async with open_reading_mesh(
        realm.identity("far"), transport, (bound,), config=config, entropy=os.urandom, wall_clock=lambda: WALL
    ):
        print(bound, flush=True)  # noqa: T201 -- this is what the parent waits for
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(_main)
