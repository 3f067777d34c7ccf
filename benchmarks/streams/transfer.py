"""A large transfer over a bad network: packets are lost, the link flaps, connections are reset."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import trio

import iris
from benchmarks.streams.cable import ADDRESSES, kill_connections, open_cable, why_not
from benchmarks.streams.hashed import MIB, make_credentials, send_hashed, taking
from benchmarks.streams.nodes import CLUSTER
from benchmarks.streams.processes import Part, open_run, resident, say
from benchmarks.streams.table import heading, row

_CONFIG: Final = iris.Config(suspicion_multiplier=20.0, refused_grace=10.0)
"""A peer is dead after 10 s of silence, or of refusing: TCP needs a second or two to go on after a flap, or to connect
if a flap comes just then."""


async def _member(task: Mapping[str, Any]) -> None:
    async with (
        iris.open_node(credential=task["credential"], listen=[task["listen"]], config=_CONFIG) as node,
        node.join(CLUSTER, taking()),
    ):
        say(ready=True)
        await trio.sleep_forever()


async def _opener(task: Mapping[str, Any]) -> None:
    async with iris.open_node(
        credential=task["credential"], listen=[task["listen"]], seeds=[task["seed"]], config=_CONFIG
    ) as node:
        await node.wait_for(CLUSTER, timeout=60)
        say(ready=True)
        await send_hashed(node, task["bytes"], every=MIB)
        await trio.sleep_forever()


ROLES = {"member": _member, "opener": _opener}


def conduct(*, quick: bool) -> None:
    """Send through loss, flaps and resets."""
    if why := why_not():
        print(f"\ntransfer: not run: {why}")
        return
    # By what has passed and not by time: the faults are as many on any machine.
    size, flap_every, reset_every = (32 * MIB, 250, 2 * MIB) if quick else (10 * 1024 * MIB, 6000, 40 * MIB)
    heading(
        "One transfer through 1 % packet loss, link flaps of 50 to 400 ms and reset connections",
        "size",
        "SHA-256",
        "packets lost",
        "flaps",
        "connections reset",
        "chunks sent again",
        "rate",
        "most memory: opener, member",
    )
    with open_run() as run, open_cable(run, loss=0.01, flap_every=flap_every, flap=(0.05, 0.4)) as (cable, namespaces):
        credential = make_credentials(run, **{CLUSTER: ()})[CLUSTER]
        prefixes = [("ip", "netns", "exec", namespace) for namespace in namespaces]
        urls = [f"tcp://{address}:7000" for address in ADDRESSES]
        member = run.start("transfer", "member", prefix=prefixes[0], credential=credential, listen=urls[0])
        member.hear("ready")
        opener = run.start(
            "transfer",
            "opener",
            prefix=prefixes[1],
            credential=credential,
            listen=urls[1],
            seed=urls[0],
            bytes=size,
        )
        opener.hear("ready")
        resets, said = _reset_until_done(opener, namespaces[1], every=reset_every)
        cable.tell()
        counted = cable.hear_line("lost")
        memory = [resident(part.pid, "VmHWM") / MIB for part in (opener, member)]
    row(
        f"{size // MIB:,} MiB",
        "equal" if said["equal"] else "DIFFERENT",
        f"{counted['lost']:,} of {counted['passed'] + counted['lost']:,}",
        str(counted["flaps"]),
        str(resets),
        f"{said['resent']:,}",
        f"{size / MIB / said['done']:.1f} MiB/s",
        f"{memory[0]:.0f}, {memory[1]:.0f} MiB",
    )
    if not said["equal"]:
        raise SystemExit("transfer: what arrived is not what was sent")


def _reset_until_done(opener: Part, namespace: str, every: int) -> tuple[int, dict[str, Any]]:
    """Reset all connections after each ``every`` bytes, in the mean; return how often, and the opener's last line."""
    rng = random.Random(2)
    resets = 0
    due = float(every)
    while True:
        said = opener.hear_line("", 120.0)
        if "done" in said:
            return resets, said
        if said["sent"] >= due:
            kill_connections(namespace)
            resets += 1
            due += rng.uniform(0.5, 1.5) * every
