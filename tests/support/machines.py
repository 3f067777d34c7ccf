"""Two machines on one: network namespaces with a cable between them that can be cut.  Linux, root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import final

from tests.support.command import Terminal, open_terminal

NETWORK = "10.77.0"

APP = """
import iris

databases = iris.Service("databases")

@databases.request
async def query(request: iris.Request) -> object:
    return request.payload
"""
"""A service for ``iris run app:databases``."""


def why_not() -> str:
    """Return why there can be no namespaces here; empty if there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the program ip (Debian: apt install iproute2)"
    return ""


def why_no_wall() -> str:
    """Return why there can be no firewalls here; empty if there can."""
    return why_not() or ("" if shutil.which("nft") else "firewalls need the program nft (Debian: apt install nftables)")


@final
class Machine:
    """One end of the cable."""

    def __init__(self, namespace: str, number: int, terminal: Terminal) -> None:
        self.terminal = terminal
        self.address = f"{NETWORK}.{number}"
        self.url = f"tcp://{self.address}:7000"
        self.web = f"ws://{self.address}:7080/iris"
        self.namespace = namespace
        self._interface = f"v{number}"

    def connect(self) -> None:
        """Bring this end up."""
        _ip("-n", self.namespace, "link", "set", "lo", "up")
        _ip("-n", self.namespace, "addr", "replace", f"{self.address}/24", "dev", self._interface)
        self.plug()

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program on this machine; what it says comes out of one pipe."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            cwd=self.terminal.directory,
            env={**self.terminal.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def plug(self) -> None:
        """Plug the cable in."""
        _ip("-n", self.namespace, "link", "set", self._interface, "up")

    def unplug(self) -> None:
        """Pull the cable out: nothing passes in either direction, and no end is notified."""
        _ip("-n", self.namespace, "link", "set", self._interface, "down")

    def move(self, address: str) -> None:
        """Come to another address; the former one is nobody's."""
        _ip("-n", self.namespace, "addr", "del", f"{self.address}/24", "dev", self._interface)
        self.address = address
        _ip("-n", self.namespace, "addr", "add", f"{address}/24", "dev", self._interface)

    def silence(self, towards: Machine) -> None:
        """Lose everything that this machine sends to the other one, and go on receiving."""
        _ip("-n", self.namespace, "route", "replace", "blackhole", f"{towards.address}/32")

    def unsilence(self, towards: Machine) -> None:
        """Undo ``silence``."""
        _ip("-n", self.namespace, "route", "del", "blackhole", f"{towards.address}/32")

    def turn_away_callers(self) -> None:
        """Drop every attempt to open a TCP connection to this machine, as NAT and firewalls do."""
        _nft(self.namespace, "add table ip wall")
        _nft(self.namespace, "add chain ip wall input { type filter hook input priority 0; policy accept; }")
        _nft(self.namespace, 'add rule ip wall input iifname != "lo" tcp flags & (syn | ack) == syn counter drop')

    def let_in(self, *ports: int) -> None:
        """Drop every attempt to open a TCP connection to this machine but to these ports, as a network policy does."""
        self.turn_away_callers()
        allowed = ", ".join(map(str, ports))
        _nft(self.namespace, f"insert rule ip wall input tcp dport {{ {allowed} }} accept")

    def drop_datagrams(self, port: int) -> None:
        """Drop UDP datagrams to a port of this machine, also those that come from itself."""
        _nft(self.namespace, "add table inet wall")
        _nft(self.namespace, "add chain inet wall input { type filter hook input priority 0; policy accept; }")
        _nft(self.namespace, f"add rule inet wall input udp dport {port} drop")

    def turned_away(self) -> int:
        """Return how many attempts have been dropped."""
        told = _nft(self.namespace, "list chain ip wall input")
        return int(re.findall(r"counter packets (\d+)", told)[0])


@contextmanager
def open_machines() -> Generator[tuple[Machine, Machine]]:
    """Make two machines, and remove them at the end of the block."""
    with ExitStack() as stack:
        machines: list[Machine] = []
        names = [f"iris-{os.getpid()}-{number}" for number in (1, 2)]
        for number, name in enumerate(names, 1):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            terminal = stack.enter_context(open_terminal(("ip", "netns", "exec", name)))
            machines.append(Machine(name, number, terminal))
        _ip("link", "add", "v1", "netns", names[0], "type", "veth", "peer", "name", "v2", "netns", names[1])
        for machine in machines:
            machine.connect()
        yield machines[0], machines[1]


def _nft(namespace: str, rule: str) -> str:
    command = ["ip", "netns", "exec", namespace, "nft", rule]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"nft {rule}: {done.stderr.strip()}")
    return done.stdout


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
