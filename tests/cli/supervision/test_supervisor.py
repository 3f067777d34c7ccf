"""A supervisor and its workers as real processes, which serve nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.processes import Child
from tests.support.supervision import PATIENCE, is_running, log, supervised, wait_gone, wait_workers, workers


def test_the_dead_are_started_again_sighup_replaces_all_and_sigterm_ends_all(tmp_path: Path) -> None:
    with supervised(2, tmp_path, "2 workers serve") as supervisor:
        first = workers(tmp_path)
        assert sorted(first.values()) == [0, 1]
        killed = min(first)
        os.kill(killed, signal.SIGKILL)
        (tmp_path / str(killed)).unlink()
        second = wait_workers(tmp_path, lambda now: len(now) == 2)
        assert sorted(second.values()) == [0, 1]
        assert f"worker {killed} was killed by SIGKILL (out of memory?); starting another in 0.5 s" in log(tmp_path)
        supervisor.send(signal.SIGHUP)
        supervisor.wait_ready("2 workers replaced")
        third = workers(tmp_path)
        assert len(third) == 2
        assert not third.keys() & second.keys()
        assert supervisor.end(signal.SIGTERM) == 0
        assert workers(tmp_path) == {}
        assert not any(map(is_running, third))


def test_workers_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with supervised(2, tmp_path, "2 workers serve") as supervisor:
        served = workers(tmp_path)
        os.kill(supervisor.pid, signal.SIGKILL)
        wait_workers(tmp_path, lambda now: not now)
        assert "the supervisor is gone: leaving" in log(tmp_path)
        wait_gone(*served)


def test_who_does_not_leave_is_killed_in_time(tmp_path: Path) -> None:
    with supervised(1, tmp_path, "1 worker serves") as supervisor:
        (tmp_path / "stuck").touch()
        (pid,) = workers(tmp_path)
        assert supervisor.end(signal.SIGTERM) == 1
        assert not is_running(pid)
        assert f"worker {pid} has not left within 0.4 s and is killed" in log(tmp_path)


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    with supervised(1, tmp_path, "1 worker serves") as supervisor:
        (tmp_path / "stuck").touch()
        (pid,) = workers(tmp_path)
        supervisor.send(signal.SIGTERM)
        supervisor.wait_ready("SIGTERM: 1 worker leaves within 0.2 s; a second signal ends them at once")
        assert supervisor.end(signal.SIGTERM) == 143
        wait_gone(pid)


def test_if_none_ever_serves_the_supervisor_ends_with_that_error(tmp_path: Path) -> None:
    (tmp_path / "fails").write_text("there is no database")
    command = [sys.executable, "-m", "tests.support.programs.supervised", "3", str(tmp_path)]
    child = Child(command, ready="never", log=tmp_path / "log.txt")
    child.launch()
    said = child.wait_end()
    assert said == "iris: supervisor: starting 3 workers\niris: there is no database\n"


def test_a_broken_new_version_leaves_the_old_workers(tmp_path: Path) -> None:
    with supervised(1, tmp_path, "1 worker serves") as supervisor:
        before = workers(tmp_path)
        (tmp_path / "fails").write_text("there is no database")
        supervisor.send(signal.SIGHUP)
        supervisor.wait_ready("did not start: there is no database; nothing more is replaced")
        assert workers(tmp_path) == before
        assert supervisor.end(signal.SIGTERM) == 0


IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_a_hang_up_of_the_terminal_ends_the_supervisor_in_order(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    arguments = ("-m", "tests.support.programs.supervised", "1", str(tmp_path))
    with (tmp_path / "log.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *arguments], stdin=theirs, stderr=said, start_new_session=True
        )
    with process:
        try:
            os.close(theirs)
            wait_workers(tmp_path, lambda now: len(now) == 1)
            os.close(ours)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert workers(tmp_path) == {}
    assert "SIGHUP: 1 worker leaves" in log(tmp_path)
