"""Holders of a lease on two machines whose cable is cut, and whose processes are stopped: never two at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.machines import Machine, open_machines, why_not

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_not()), reason=why_not())]

HOLDER = """
import sys, time, trio, iris

async def main():
    listen, *seeds = sys.argv[1:]
    async with iris.open_node(credential="workers", listen=[listen], seeds=seeds) as node:
        await node.wait_for("bridge", timeout=60)
        while True:
            try:
                async with node.bridge().lease("scheduler", ttl=3, timeout=600) as lease:
                    while True:
                        now = time.monotonic()  # of the machine: the same for all
                        if lease.left > 0:
                            print(lease.token, now, flush=True)
                        await trio.sleep(0.02)
            except iris.IrisError:
                pass

trio.run(main)
"""

PATIENCE = 60.0


class Holder:
    """A program that says when it has the lease."""

    def __init__(self, machine: Machine, port: int, *seeds: str) -> None:
        terminal = machine.terminal
        command = ["ip", "netns", "exec", machine.namespace, sys.executable, "-c", HOLDER]
        self.path = terminal.directory / f"held-{port}"
        with self.path.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, f"tcp://{machine.address}:{port}", *seeds],
                cwd=terminal.directory,
                env=terminal.environment,
                stdout=file,
            )

    def held(self) -> list[tuple[int, float]]:
        """Return with which token it had the lease when."""
        lines = [line.split() for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [(int(token), float(when)) for token, when in lines]

    def wait(self, after: float) -> None:
        """Wait until it has the lease after a time."""
        deadline = time.monotonic() + PATIENCE
        while not any(when > after for _, when in self.held()):
            assert time.monotonic() < deadline, "it does not get the lease"
            time.sleep(0.05)


@contextmanager
def started(*holders: Holder) -> Generator[None]:
    try:
        yield
    finally:
        for holder in holders:
            holder.process.kill()
            holder.process.wait()


@pytest.mark.parametrize("fault", ["the cable is pulled", "primary and holder are stopped"])
def test_a_primary_that_is_followed_by_another_has_no_holder_beside_that_one(fault: str) -> None:
    with open_machines() as (here, there), ExitStack() as stack:
        realm = str(here.terminal.directory / "realm.key")
        assert here.terminal.run("keys", "realm", realm).returncode == 0
        for machine in (here, there):
            for name, *rights in (("bridge", "--serve", "bridge.*"), ("workers",)):
                out = str(machine.terminal.directory / name)
                done = here.terminal.run("keys", "cluster", realm, name, *rights, "--out", out)
                assert done.returncode == 0, done.stderr
        bridge = ("bridge", "--credential", "bridge", "--data", "log")
        primary = stack.enter_context(
            here.terminal.started(
                *bridge, "--topic", ">", "--min-copies", "1", "--listen", here.url, announces="stores"
            )
        )
        copy = ("--follow", "bridge/0", "--listen", there.url, "--seeds", here.url)
        stack.enter_context(there.terminal.started(*bridge, *copy, announces="is the copy"))
        first = Holder(here, 7001, here.url)
        stack.enter_context(started(first))
        first.wait(0.0)
        second = Holder(there, 7001, there.url, here.url)
        stack.enter_context(started(second))
        time.sleep(2.0)  # the length of a time in which it is renewed
        assert not second.held()
        if fault == "the cable is pulled":
            here.unplug()
        else:
            primary.send_signal(signal.SIGSTOP)
            first.process.send_signal(signal.SIGSTOP)
        promote = ("bridge", "promote", "bridge/0", "--min-copies", "0", "--credential", "bridge", "--seeds", there.url)
        done = there.terminal.run(*promote, "--listen", f"tcp://{there.address}:0")
        assert done.returncode == 0, done.stderr
        second.wait(0.0)
        if fault == "the cable is pulled":
            time.sleep(6.0)  # twice as long as a lease, beside each other
            here.plug()
        else:
            first.process.send_signal(signal.SIGCONT)
            primary.send_signal(signal.SIGCONT)
        again = time.monotonic()
        second.wait(again + 2.0)
        held = {holder: holder.held() for holder in (first, second)}
        token, begun = held[second][0]
        assert max(when for _, when in held[first]) < begun
        assert max(former for former, when in held[first] if when < begun) < token
