"""``iris top`` beside real processes: right, right again after kills, and cheap for the nodes that it watches."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import pytest

from tests.support.command import PATIENCE, Terminal, open_terminal
from tests.support.store_realm import RATE, open_store_realm, share_of_core


def _view(terminal: Terminal, interval: str) -> dict[str, Any]:
    done = terminal.run("top", "--once", "-o", "json", "--interval", interval)
    assert done.returncode == 0, done.stderr.decode()
    view: dict[str, Any] = json.loads(done.stdout)
    return view


def _is_anybody_late(view: dict[str, Any]) -> bool:
    """Whether a node is late with its second report, or was with its first: the rates of that one are not known yet."""
    return any(node["late"] for node in view["silent"]) or not all(node["seconds"] for node in view["nodes"])


def _check(terminal: Terminal, interval: str, members: list[int], callers: list[int]) -> None:
    """Compare a view with the processes that live."""
    view, tries = _view(terminal, interval), 1
    while _is_anybody_late(view):
        assert tries < 4, view
        view, tries = _view(terminal, interval), tries + 1
    assert view["silent"] == []
    nodes = {node["process"]: node for node in view["nodes"]}
    assert sorted(nodes) == sorted([*members, *callers])
    (cluster,) = view["clusters"]
    assert (cluster["cluster"], cluster["members"]) == ("store", len(members))
    assert cluster["rate"] == pytest.approx(RATE * len(callers), rel=0.2)
    assert 0.015 <= cluster["p50"] <= 1.0
    assert cluster["p50"] <= cluster["p99"]
    for process in callers:
        assert nodes[process]["asked_rate"] == pytest.approx(RATE, rel=0.2)
    assert all(nodes[process]["clusters"][0]["cluster"] == "store" for process in members)


def _check_kills(members: int, callers: int, kills: int, interval: str) -> None:
    with open_terminal() as terminal, open_store_realm(terminal, members, callers) as started:
        store, app = ([process.pid for process in started[name]] for name in ("store", "app"))
        _check(terminal, interval, store, app)
        for process in started["store"][:kills]:
            process.send_signal(signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while len((view := _view(terminal, interval))["nodes"]) + len(view["silent"]) > members - kills + callers:
            assert time.monotonic() < until, "killed nodes were still known"
        _check(terminal, interval, store[kills:], app)


def test_top_is_right_and_right_again_after_members_were_killed() -> None:
    _check_kills(members=4, callers=2, kills=2, interval="3")


@pytest.mark.long
def test_top_is_right_with_50_processes_and_after_12_were_killed() -> None:
    _check_kills(members=40, callers=10, kills=12, interval="5")


@pytest.mark.long
def test_watching_50_processes_costs_each_at_most_a_fifth_of_a_percent_of_a_core() -> None:
    seconds = 20.0
    with open_terminal() as terminal, open_store_realm(terminal, 40, 10) as started:
        pids = [process.pid for several in started.values() for process in several]
        without: list[float] = []
        watched: list[float] = []
        for _ in range(3):
            without.append(share_of_core(pids, seconds))
            with terminal.started("top", "-o", "json") as top:
                assert top.stdout is not None
                top.stdout.readline()  # it is up, and has begun to watch
                watched.append(share_of_core(pids, seconds))
                top.send_signal(signal.SIGINT)
                top.communicate(timeout=PATIENCE)
        cost = (sum(watched) - sum(without)) / len(watched)
        sys.stdout.write(f"without {without}, watched {watched}: {cost:.4%} of a core for each node\n")
        assert cost <= 0.002
