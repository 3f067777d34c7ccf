"""Supervisors and workers where nobody reads what they say, and signals that go to all of them at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iris.cli.connection import NodeOptions
from iris.cli.supervision.places import options_at
from iris.cli.supervision.worker import Place
from iris.cli.supervision.workforce import Effect, Finish, Say, Start, Worker, Workforce
from iris.kernel.errors import ConfigError
from tests.support.supervision import PATIENCE, wait_gone, wait_workers, workers

SUPERVISED = (sys.executable, "-m", "tests.support.programs.supervised")


def start_unread(count: int, directory: Path) -> subprocess.Popen[bytes]:
    """Start a supervisor whose standard error is a pipe that nobody reads any more, once its workers serve."""
    reader, writer = os.pipe()
    supervisor = subprocess.Popen(
        [*SUPERVISED, str(count), str(directory)], stderr=writer, stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(writer)
    wait_workers(directory, lambda now: len(now) == count)
    os.close(reader)
    return supervisor


def test_workers_leave_with_their_supervisor_also_if_what_read_its_log_has_gone_too(tmp_path: Path) -> None:
    with start_unread(2, tmp_path) as supervisor:
        served = workers(tmp_path)
        supervisor.kill()
        wait_workers(tmp_path, lambda now: not now)
        wait_gone(*served)


def test_a_supervisor_goes_on_when_nobody_reads_its_log(tmp_path: Path) -> None:
    with start_unread(1, tmp_path) as supervisor:
        try:
            (pid,) = workers(tmp_path)
            os.kill(pid, signal.SIGKILL)
            (tmp_path / str(pid)).unlink()
            wait_workers(tmp_path, lambda now: len(now) == 1)
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(PATIENCE) == 0
            assert workers(tmp_path) == {}
        finally:
            supervisor.kill()


def test_a_worker_that_is_stopped_does_not_keep_its_supervisor(tmp_path: Path) -> None:
    with start_unread(2, tmp_path) as supervisor:
        try:
            stopped = min(served := workers(tmp_path))
            os.kill(stopped, signal.SIGSTOP)
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(PATIENCE) == 1
            wait_gone(*served)
        finally:
            supervisor.kill()


@pytest.mark.long
def test_a_storm_of_hang_ups_to_the_whole_group_replaces_all_and_loses_nobody(tmp_path: Path) -> None:
    with start_unread(2, tmp_path) as supervisor:
        try:
            first = workers(tmp_path)
            for _ in range(20):
                os.killpg(supervisor.pid, signal.SIGHUP)
                time.sleep(0.05)
                assert len(workers(tmp_path)) >= 2
            last = wait_workers(tmp_path, lambda now: len(now) == 2 and not now.keys() & first.keys())
            assert len(last) == 2
            supervisor.send_signal(signal.SIGTERM)
            assert supervisor.wait(PATIENCE) == 0
        finally:
            supervisor.kill()


# -- decisions ----------------------------------------------------------------------------------------------


def started(effects: list[Effect]) -> list[Worker]:
    return [effect.worker for effect in effects if isinstance(effect, Start)]


def test_a_hang_up_that_went_to_workers_which_were_loading_starts_them_again() -> None:
    force = Workforce(2, 5, 10)
    first = started(force.begin(0.0))
    again: list[Worker] = []
    for worker in first:
        effects = force.ended(worker, -signal.SIGHUP, 0.1)
        assert not any(isinstance(effect, Finish | Say) for effect in effects)
        again += started(effects)
    assert [worker.place for worker in again] == [worker.place for worker in first]
    for worker in again:
        force.serving(worker, 1.0)
    (successor,) = started(force.replace(10.0))
    (second,) = started(force.ended(successor, -signal.SIGHUP, 10.1))
    assert second.place == successor.place
    assert second in force.workers
    effects = force.serving(second, 11.0)
    assert any(isinstance(effect, Say) and "serves" in effect.text for effect in effects)


def test_one_that_dies_of_a_hang_up_while_it_serves_has_died() -> None:
    force = Workforce(1, 5, 10)
    (worker,) = started(force.begin(0.0))
    force.serving(worker, 1.0)
    (said,) = force.ended(worker, -signal.SIGHUP, 2.0)
    assert isinstance(said, Say)
    assert "was killed by SIGHUP" in said.text
    assert "starting another in 0.5 s" in said.text


@pytest.mark.parametrize(
    "url",
    ["", "tcp", "tcp://", "tcp://host", "tcp://host:", "tcp://host:abc", "tcp://host:-1", "tcp://host:99999999999",
     "tcp://[::1]", "tcp://[::1", "ws://host/path", "ws://host:80:90/x", "tcp://h:1/\udcff", "ipc://", "://:1"],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 3])
def test_where_nobody_can_listen_is_left_to_the_node_or_refused(url: str, place: int) -> None:
    options = NodeOptions(credential=None, seeds=(), listen=(url,), site=None)
    with contextlib.suppress(ConfigError):
        options_at(options, Place(place, place, follows=False), 1, {})
