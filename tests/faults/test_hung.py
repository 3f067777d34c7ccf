"""A member whose process hangs, or is killed, as another process sees it: nothing is simulated here but the fault."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack

import pytest

from tests.support.command import Terminal, open_terminal
from tests.support.machines import APP
from tests.support.watching import Changes

pytestmark = pytest.mark.faults

MEMBERS = 3
RUN = ("run", "app:databases")
PATIENCE = 60.0


@pytest.fixture
def watched() -> Generator[tuple[list[subprocess.Popen[bytes]], Changes, Terminal]]:
    """Three members of one cluster and somebody who watches it, all on this machine."""
    with open_terminal() as terminal, ExitStack() as stack:
        (terminal.directory / "app.py").write_text(APP)
        members = [stack.enter_context(terminal.started(*RUN, announces="serves databases")) for _ in range(MEMBERS)]
        watching = stack.enter_context(terminal.started("nodes", "databases", "--watch", "--json"))
        changes = Changes(watching)
        for _ in members:
            changes.wait_for("joined", PATIENCE)
        yield members, changes, terminal


Watched = tuple[list[subprocess.Popen[bytes]], Changes, Terminal]


def test_a_stopped_member_is_lost_in_time_and_back_as_soon_as_it_runs(watched: Watched) -> None:
    members, changes, terminal = watched
    stopped = time.monotonic()
    members[0].send_signal(signal.SIGSTOP)
    try:
        changes.wait_for("lost", PATIENCE)
        assert time.monotonic() - stopped > 0.5, "a process that stands still for a moment is not dead"
        for _ in range(5):
            done = terminal.run("request", "databases", "hello")
            assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
    finally:
        members[0].send_signal(signal.SIGCONT)
    changes.wait_for("joined", PATIENCE)


def test_a_killed_member_is_lost(watched: Watched) -> None:
    members, changes, _ = watched
    members[0].kill()
    members[0].wait()
    changes.wait_for("lost", PATIENCE)


def test_a_member_that_stands_still_for_a_second_is_not_lost(watched: Watched) -> None:
    members, changes, terminal = watched
    members[0].send_signal(signal.SIGSTOP)
    time.sleep(1.0)  # the length of the fault itself
    members[0].send_signal(signal.SIGCONT)
    done = terminal.run("request", "databases", "hello")
    assert (done.returncode, done.stdout) == (0, b"hello\n"), done.stderr
    with pytest.raises(AssertionError, match="no lost"):
        changes.wait_for("lost", 5.0)
