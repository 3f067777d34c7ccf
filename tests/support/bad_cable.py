"""A bad cable between two machines on one: packets are lost at random, and now and then all of them for a moment.

It may also be long: packets then take their time, and for as long as it is asked to nothing passes at all.

Linux, root.  The machines are network namespaces; the cable is a program between two TUN devices, so that nothing has
to be in the kernel but those.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import random
import select
import shutil
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.support.parts import Part, Run, say

ADDRESSES: Final = ("10.78.0.1", "10.78.0.2")

_TUN: Final = "/dev/net/tun"
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_MTU: Final = 9000
_BURST: Final = 64
"""Packets of one direction before the other one gets its turn."""

_QUEUE: Final = 0.1
"""Seconds that a packet may wait before a cable of limited speed: what would wait longer is lost, as at a router."""


def why_not() -> str:
    """Return why there can be no such cable here; empty if there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("ss") is None:
        return "network namespaces need the programs ip and ss (Debian: apt install iproute2)"
    return "" if Path(_TUN).exists() else f"there is no {_TUN}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


async def _cable(task: Mapping[str, Any]) -> None:
    """Pass packets on, and lose some; prints its counters when it gets a line, and is down for the seconds in it."""
    rng = random.Random(task["seed"])
    ends = [_open_end(name, address) for name, address in zip(task["namespaces"], ADDRESSES, strict=True)]
    say(ready=True)
    passed = lost = flaps = 0
    down_until = 0.0
    flap_at = task["flap_every"]
    delay = task["delay"]
    rate = task["rate"]
    on_the_way: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    free_at = dict.fromkeys(ends, 0.0)
    while True:
        due = min((packets[0][0] for packets in on_the_way.values() if packets), default=math.inf)
        ready, _, _ = select.select([*ends, sys.stdin], [], [], min(max(0.0, due - monotonic()), 0.05))
        now = monotonic()
        for target, packets in on_the_way.items():
            while packets and packets[0][0] <= now:
                with contextlib.suppress(BlockingIOError):
                    os.write(target, packets.popleft()[1])
        if passed >= flap_at:
            down_until = now + rng.uniform(*task["flap"])
            flap_at = passed + rng.uniform(0.5, 1.5) * task["flap_every"]
            flaps += 1
        for source, target in (ends, reversed(ends)):
            for _ in range(_BURST if source in ready else 0):
                try:
                    packet = os.read(source, 65536)
                except BlockingIOError:
                    break
                if now < down_until or rng.random() < task["loss"] or free_at[target] > now + _QUEUE:
                    lost += 1
                    continue
                if delay:
                    free_at[target] = max(free_at[target], now) + len(packet) / rate
                    on_the_way[target].append((free_at[target] + delay, packet))
                    passed += 1
                    continue
                with contextlib.suppress(BlockingIOError):
                    os.write(target, packet)
                passed += 1
        if sys.stdin in ready:
            seconds = sys.stdin.readline().strip()
            if seconds:
                down_until = now + float(seconds)
            say(passed=passed, lost=lost, flaps=flaps)


def _open_end(namespace: str, address: str) -> int:
    """Make a TUN device and put it into a namespace; what is sent there can be read here."""
    name = f"is{os.getpid()}"
    end = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    _ip("link", "set", name, "netns", namespace)
    _ip("-n", namespace, "link", "set", name, "mtu", str(_MTU), "up")
    _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", name)
    _ip("-n", namespace, "link", "set", "lo", "up")
    return end


ROLES = {"cable": _cable}


def kill_connections(namespace: str) -> None:
    """Reset every TCP connection of a namespace, as a firewall that has lost its table does."""
    subprocess.run(["ip", "netns", "exec", namespace, "ss", "-K", "-t"], check=True, capture_output=True)


@contextlib.contextmanager
def open_cable(
    run: Run, *, loss: float, flap_every: float, flap: tuple[float, float], delay: float = 0.0, rate: float = 1e12
) -> Generator[tuple[Part, tuple[str, str]]]:
    """Make two machines and a cable; give its process and the names of their namespaces.

    The cable flaps after each ``flap_every`` packets that have passed, in the mean: a slow machine's transfer meets as
    many flaps as a fast one's.  Packets take ``delay`` seconds each way, and ``rate`` bytes per second of them
    pass if there is a delay.
    """
    namespaces = (f"is-{os.getpid()}-1", f"is-{os.getpid()}-2")
    with contextlib.ExitStack() as stack:
        for namespace in namespaces:
            _ip("netns", "add", namespace)
            stack.callback(_ip, "netns", "del", namespace)
        cable = run.start(
            __name__,
            "cable",
            namespaces=namespaces,
            loss=loss,
            flap_every=flap_every,
            flap=flap,
            delay=delay,
            rate=rate,
            seed=1,
        )
        cable.hear("ready")
        yield cable, namespaces
