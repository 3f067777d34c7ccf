"""A node of threads that is left by what ends a program: the events in line are sent, or counted and logged."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import iris
import iris.sync
from tests.support.processes import Child, open_realm
from tests.support.threads import inner_of, portal_of

EVENTS = 60
"""Events that are posted at a time: the subscriber's window is four."""


@pytest.fixture(autouse=True)
def _own_realm() -> Iterator[None]:
    with open_realm():
        yield


@contextmanager
def open_reader() -> Iterator[iris.sync.Subscription]:
    """Open a node that subscribes to everything, and waits for nothing to be lost."""
    limits = iris.SubscriptionLimits(events=4)
    with iris.sync.open_node("reader") as reader, reader.subscribe("a.b", overflow="wait", limits=limits) as events:
        yield events


def leaving(how: str, log: Path) -> Child:
    command = [sys.executable, "-m", "tests.support.programs.leaving", str(EVENTS), how]
    child = Child(command, ready="may be interrupted" if how == "twice" else "posted", log=log)
    child.start()
    if how in ("interrupt", "twice"):
        child.wait_ready("may be interrupted")
        child.send(signal.SIGINT)
    return child


def lost(said: str) -> int:
    """Return how many events the program has counted as lost, as it has logged them."""
    line = next(line for line in said.splitlines() if line.startswith("{"))
    reasons: dict[str, int] = json.loads(line)["lost"]
    assert reasons.keys() <= {"not published"}
    count = reasons.get("not published", 0)
    logged = f"ERROR {count} events of threads were not published: their node was left by then"
    assert (logged in said) == (count > 0), said
    return count


def numbers(events: list[iris.Event]) -> list[int]:
    return [int(event.payload) for event in events if event.payload != b"begin"]


@pytest.mark.parametrize("how", ["exit", "interrupt", "error"])
def test_a_node_that_is_left_by_an_exception_sends_what_stands_in_line(how: str, tmp_path: Path) -> None:
    """All of it, but for what its subscriber has not taken in time, on a machine that is busy."""
    taken: list[iris.Event] = []
    with open_reader() as events, ThreadPoolExecutor(1) as thread:
        child = leaving(how, tmp_path / "log")
        taking = thread.submit(lambda: taken.extend(events))
        said = child.wait_end()
        sent = EVENTS - lost(said)
        ends = time.monotonic() + 30
        while len(numbers(taken)) < sent:
            assert time.monotonic() < ends
            time.sleep(0.01)
        portal_of(events).call_plain(inner_of(events)._close)
        taking.result(30)
    assert sent > 0
    assert numbers(taken) == list(range(sent))


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_what_it_cannot_send_in_time_is_counted_and_logged(how: str, tmp_path: Path) -> None:
    with open_reader() as events:
        said = leaving(how, tmp_path / "log").wait_end()
    assert lost(said) == EVENTS
    assert numbers([*events]) == []


def test_a_program_that_waits_for_nothing_says_how_many_events_it_leaves(tmp_path: Path) -> None:
    child = leaving("twice", tmp_path / "log")
    child.wait_ready("struck")
    child.send(signal.SIGINT)
    assert f"ERROR a node was left without a wait for {EVENTS} events of its threads" in child.wait_end()
