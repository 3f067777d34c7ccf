"""The processes that the books are kept of: a member of the cluster, or a gateway, until it is killed."""

from __future__ import annotations

import argparse
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import trio

import iris
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy

CLUSTER = "cache"
EVERYTHING = Policy(exports=(">",), export_topics=(">",))


def options_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``open_node``."""
    return {"credential": given.credential, "site": given.site, "listen": [given.listen], "seeds": given.seeds}


async def serve(given: argparse.Namespace) -> None:
    """Be a member that takes everything, and counts it where a SIGKILL does not reach."""
    service = iris.Service(CLUSTER)
    options = options_of(given)
    async with iris.open_node(**options) as node:
        file = given.counts / f"{os.getpid()}-{node.id}"
        file.write_bytes(bytes(16))
        with file.open("r+b") as opened:
            counts = memoryview(mmap.mmap(opened.fileno(), 16)).cast("Q")

        @service.broadcast
        async def note(message: iris.Message) -> None:
            counts[0] += message.cluster == CLUSTER

        @service.request
        async def answer(request: iris.Request) -> object:
            return request.payload

        @service.tunnel
        async def talk(tunnel: iris.Tunnel) -> None:
            async for _ in tunnel:
                pass

        async with node.subscribe("news.>") as news, node.join(CLUSTER, service):
            print("ready", file=sys.stderr, flush=True)
            async for _ in news:
                counts[1] += 1


async def carry(given: argparse.Namespace) -> None:
    """Be a gateway."""
    async with (
        iris.open_node(credential=given.credential, site=given.site, listen=[given.listen], seeds=given.seeds) as node,
        open_gateway(node, listen=[given.between], peers=given.peers, policy=EVERYTHING),
    ):
        print("ready", file=sys.stderr, flush=True)
        await trio.sleep_forever()


def main() -> None:
    """Be what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["member", "gateway"])
    parser.add_argument("--credential", type=Path)
    parser.add_argument("--counts", type=Path)
    parser.add_argument("--site")
    parser.add_argument("--listen")
    parser.add_argument("--between")
    parser.add_argument("--seeds", action="append", default=[])
    parser.add_argument("--peers", action="append", default=[])
    given = parser.parse_args()
    trio.run(serve if given.role == "member" else carry, given)


if __name__ == "__main__":
    main()
