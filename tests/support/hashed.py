"""A transfer of which both ends make a hash, between nodes of a realm that was made for the run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from time import perf_counter
from typing import Final

import iris
from tests.support.parts import Run, say

CLUSTER: Final = "streams"
MIB: Final = 2**20
_PIECE: Final = 256 * 1024


def make_credentials(run: Run, **clusters: tuple[str, ...]) -> dict[str, str]:
    """Make a realm, and a credential for each cluster, given with the options of ``iris keys cluster``.

    Returns where each credential is, by the name of its cluster.
    """
    realm = str(run.directory / "realm.key")
    environment = {**os.environ, "IRIS_HOME": str(run.directory / "home")}
    paths = {name: str(run.directory / name) for name in clusters}
    for command in (
        ("realm", realm),
        *(("cluster", realm, name, *options, "--out", paths[name]) for name, options in clusters.items()),
    ):
        subprocess.run(
            [sys.executable, "-m", "iris", "keys", *command], check=True, capture_output=True, env=environment
        )
    return paths


def taking() -> iris.Service:
    """Return a service that takes transfers; it answers each with what it has got: the hash and the number of bytes."""
    service = iris.Service(CLUSTER)

    @service.tunnel
    async def take(tunnel: iris.Tunnel) -> None:
        digest = hashlib.sha256()
        size = 0
        async for payload in tunnel:
            digest.update(payload)
            size += len(payload)
        await tunnel.send([digest.hexdigest(), size])

    return service


async def send_hashed(node: iris.Node, size: int, every: int) -> None:
    """Send so many bytes; say after each ``every`` of them how many have been sent, and at the end how it went."""
    began = perf_counter()
    said = 0
    digest = hashlib.sha256()
    block = os.urandom(_PIECE - 8)
    async with node.open_tunnel(CLUSTER, timeout=30) as tunnel:
        for number in range(size // _PIECE):
            piece = number.to_bytes(8) + block
            digest.update(piece)
            await tunnel.send(piece)
            if (number + 1) * _PIECE - said >= every:
                said = (number + 1) * _PIECE
                say(sent=said)
        await tunnel.send_eof()
        found, received = await tunnel.receive()
        resent = tunnel.statistics().chunks_resent
    equal = found == digest.hexdigest() and received == size
    waiting = max((link.bytes_waiting for link in node.statistics().links.values()), default=0)
    say(done=perf_counter() - began, equal=equal, resent=resent, waiting=waiting)
