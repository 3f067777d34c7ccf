"""Two sites with a long cable between them: what a tunnel and a publisher reach of a bare TCP stream, and a long cut.

The cable takes 20 ms each way, and 200 Mbit/s: less than the processors here, so that it is what is measured.  At each
end is a machine with a gateway and a node; the bare stream runs over the same cable, in turns, with the buffers that
Linux gives a stream by itself.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from statistics import median
from time import perf_counter
from typing import Any, Final

import trio

import iris
from benchmarks.streams.cable import ADDRESSES, open_cable, why_not
from benchmarks.streams.hashed import MIB, make_credentials, send_hashed, taking
from benchmarks.streams.nodes import CLUSTER
from benchmarks.streams.processes import open_run, say
from benchmarks.streams.table import heading, row
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.kernel.wire import payload_size

DELAY: Final = 0.02
RATE: Final = 25e6
CUT: Final = 60.0
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


def conduct(*, quick: bool) -> None:
    """Measure over 40 ms, in turns; then cut the cable for a minute."""
    if why := why_not():
        print(f"\nsites: not run: {why}")
        return
    size, rounds, cut = (32 * MIB, 3, 10.0) if quick else (128 * MIB, 3, CUT)
    with (
        open_run() as run,
        open_cable(run, loss=0.0, flap_every=math.inf, flap=(0.0, 0.0), delay=DELAY, rate=RATE) as (cable, namespaces),
    ):
        credentials = make_credentials(run, gateways=("--gateway",), **{CLUSTER: ()})
        gateways, others = credentials["gateways"], credentials[CLUSTER]
        far, near = [("ip", "netns", "exec", namespace) for namespace in namespaces]
        urls = [f"tcp://{address}:7000" for address in ADDRESSES]
        for prefix, site, own, peers in ((far, "far", urls[0], []), (near, "near", urls[1], [urls[0]])):
            gateway = run.start(
                "sites", "gateway", prefix=prefix, credential=gateways, site=site, listen=own, peers=peers
            )
            gateway.hear("ready")
        member = run.start("sites", "far", prefix=far, credential=others)
        member.hear("ready")
        sender = run.start("sites", "near", prefix=near, credential=others)
        sender.hear("ready")
        run.start("sites", "sink", prefix=far).hear("ready")
        rates: dict[str, list[float]] = {"bare": [], "tunnel": [], "events": []}
        missed = 0
        for _ in range(rounds):
            source = run.start("sites", "source", prefix=near, bytes=size)
            rates["bare"].append(size / MIB / source.hear("seconds"))
            sender.tell(f"tunnel {size}")
            said = sender.hear_line("done", 120.0)
            if not said["equal"]:
                raise SystemExit("sites: what arrived is not what was sent")
            rates["tunnel"].append(size / MIB / said["done"])
            sender.tell(f"events {size}")
            heard = member.hear_line("heard", 120.0)
            missed += heard["missed"]
            rates["events"].append(heard["heard"] / MIB / heard["seconds"])
        bare = median(rates["bare"])
        heading("Over 200 Mbit/s and a round trip of 40 ms, between two sites", "what", "MiB/s", "of the bare stream")
        row("bare TCP stream", f"{bare:.1f}", "")
        for what, name in (("tunnel", "one tunnel"), ("events", f"one publisher, {missed} events missed")):
            row(name, f"{median(rates[what]):.1f}", f"{median(rates[what]) / bare:.0%}")
        sender.tell(f"tunnel {256 * MIB}")
        while sender.hear_line("sent")["sent"] < 64 * MIB:
            pass
        cable.tell(str(cut))
        said = sender.hear_line("done", cut + 300)
        heading(f"A tunnel of 256 MiB, and the cable is cut for {cut:.0f} s", "SHA-256", "seconds", "chunks sent again")
        row("equal" if said["equal"] else "DIFFERENT", f"{said['done']:.1f}", f"{said['resent']:,}")
    if not said["equal"] or said["done"] < cut:
        raise SystemExit("sites: what arrived is not what was sent")
