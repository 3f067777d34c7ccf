"""Nodes on two machines whose cable is cut: what the real network stack does, no simulation can show."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.support.machines import APP, Machine, open_machines, why_not
from tests.support.watching import Changes

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_not()), reason=why_not())]

DETECTED = 60.0
"""Seconds after which a silent death is taken never to be known: how soon it is depends on the machine's other work."""

MENDED = 60.0
"""The same after the cable is back, for members to see each other again."""


@pytest.fixture
def machines() -> Generator[tuple[Machine, Machine]]:
    """A watcher and a member of ``databases`` on machines of their own, in one realm."""
    with open_machines() as (watcher, member):
        realm = str(watcher.terminal.directory / "realm.key")
        for machine, name in ((watcher, "watchers"), (member, "databases")):
            if not Path(realm).exists():
                assert watcher.terminal.run("keys", "realm", realm).returncode == 0
            credential = str(machine.terminal.directory / "credential")
            done = watcher.terminal.run("keys", "cluster", realm, name, "--out", credential)
            assert done.returncode == 0, done.stderr
        (member.terminal.directory / "app.py").write_text(APP)
        yield watcher, member


Fault = Callable[[Machine, Machine], None]


def unplug(watcher: Machine, member: Machine) -> None:
    watcher.unplug()


def plug(watcher: Machine, member: Machine) -> None:
    watcher.plug()


def silence(watcher: Machine, member: Machine) -> None:
    member.silence(watcher)


def unsilence(watcher: Machine, member: Machine) -> None:
    member.unsilence(watcher)


@pytest.mark.parametrize(
    ("break_it", "mend_it"),
    [(unplug, plug), (silence, unsilence)],
    ids=["the cable is pulled", "one direction is lost"],
)
def test_a_member_that_is_cut_off_is_lost_in_time_and_found_again(
    break_it: Fault, mend_it: Fault, machines: tuple[Machine, Machine]
) -> None:
    watcher, member = machines
    seeds = ("--credential", "credential", "--seeds", member.url)
    serve = ("run", "app:databases", "--credential", "credential", "--listen", member.url)
    watch = ("nodes", "databases", "--watch", "--json", "--listen", watcher.url, *seeds)
    with member.terminal.started(*serve, announces="serves databases"), watcher.terminal.started(*watch) as watching:
        changes = Changes(watching)
        changes.wait_for("joined", MENDED)
        break_it(watcher, member)
        changes.wait_for("lost", DETECTED)
        mend_it(watcher, member)
        changes.wait_for("joined", MENDED)
        done = watcher.terminal.run("request", "databases", "hello", *seeds, "--listen", f"tcp://{watcher.address}:0")
        assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
