"""Nodes and gateways of two sites, and a bare stream between the same machines: roles of tests/faults/test_sites.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

import trio

import iris
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.kernel.wire import payload_size
from tests.support.bad_cable import ADDRESSES
from tests.support.hashed import CLUSTER, MIB, send_hashed, taking
from tests.support.parts import say

_EVENT: Final = 16 * 1024
_TOPIC: Final = "measured.events"
_PORT: Final = 7100
_NEAR: Final = "tcp://127.0.0.1:7001"
_CONFIG: Final = iris.Config(tunnel_silence=150.0)
"""Tunnels outlive the cut."""


async def _gateway(task: Mapping[str, Any]) -> None:
    policy = Policy(exports=(">",), export_topics=(">",))
    async with (
        iris.open_node(credential=task["credential"], listen=[_NEAR], site=task["site"], lan=False) as node,
        open_gateway(node, listen=[task["listen"]], peers=task["peers"], policy=policy),
    ):
        say(ready=True)
        await trio.sleep_forever()


async def _far(task: Mapping[str, Any]) -> None:
    """Take tunnels, and count events."""
    async with (
        iris.open_node(
            credential=task["credential"], seeds=[_NEAR], listen=["tcp://127.0.0.1:0"], site="far", config=_CONFIG,
            lan=False,
        ) as node,
        node.join(CLUSTER, taking()),
        node.subscribe(_TOPIC) as events,
    ):  # fmt: skip
        say(ready=True)
        began, heard, missed = 0.0, 0, 0
        async for event in events:
            missed += event.missed
            if event.raw_payload == b"begin":
                began, heard, missed = perf_counter(), 0, 0
            elif event.raw_payload == b"end":
                say(heard=heard, missed=missed, seconds=perf_counter() - began)
            else:
                heard += payload_size(event.raw_payload)


async def _near(task: Mapping[str, Any]) -> None:
    """Send one transfer, or events, for each line that is read."""
    async with iris.open_node(
        credential=task["credential"], seeds=[_NEAR], listen=["tcp://127.0.0.1:0"], site="near", config=_CONFIG,
        lan=False,
    ) as node:  # fmt: skip
        await node.wait_for(CLUSTER, timeout=60)
        await node.publish(_TOPIC, b"")
        say(ready=True)
        while True:
            what, size = (await trio.to_thread.run_sync(sys.stdin.readline)).split()
            if what == "events":
                await _publish(node, int(size))
            else:
                await send_hashed(node, int(size), every=MIB)


async def _publish(node: iris.Node, size: int) -> None:
    payload = os.urandom(_EVENT)
    await node.publish(_TOPIC, b"begin")
    for _ in range(size // _EVENT):
        await node.publish(_TOPIC, payload)
    await node.publish(_TOPIC, b"end")


async def _sink(_: Mapping[str, Any]) -> None:
    """Take bare streams, and answer each when it has ended."""

    async def take(stream: trio.SocketStream) -> None:
        async for _data in stream:
            pass
        await stream.send_all(b"!")

    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, take, _PORT)
        say(ready=True)


async def _source(task: Mapping[str, Any]) -> None:
    piece = bytes(64 * 1024)
    began = perf_counter()
    async with await trio.open_tcp_stream(ADDRESSES[0], _PORT) as stream:
        for _ in range(task["bytes"] // len(piece)):
            await stream.send_all(piece)
        await stream.send_eof()
        await stream.receive_some(1)
    say(seconds=perf_counter() - began)


ROLES = {"gateway": _gateway, "far": _far, "near": _near, "sink": _sink, "source": _source}
