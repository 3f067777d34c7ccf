"""``iris top`` beside real processes: right, right again after kills, and cheap for the nodes that it watches."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.command import PATIENCE, Terminal, open_terminal

_RATE: Final = 5.0
"""Requests per second of each caller."""

_MEMBER: Final = """
import sys, trio, iris

service = iris.Service("store")

@service.request("get")
async def get(request):
    await trio.sleep(0.02)
    return request.payload

async def main():
    async with iris.open_node(sys.argv[1]) as node:
        if sys.argv[1] == "store":
            async with node.join("store", service):
                print("up", flush=True)
                await trio.sleep_forever()
        await node.wait_for("store", timeout=60)
        print("up", flush=True)
        due = trio.current_time()
        async with trio.open_nursery() as nursery:
            while True:
                due += 1 / float(sys.argv[2])
                await trio.sleep_until(due)
                nursery.start_soon(ask, node)

async def ask(node):
    try:
        await node.request("store", b"x", operation="get", idempotent=True)
    except iris.DeliveryError:
        pass

trio.run(main)
"""


@contextmanager
def _realm(terminal: Terminal, members: int, callers: int) -> Generator[dict[str, list[subprocess.Popen[bytes]]]]:
    started: dict[str, list[subprocess.Popen[bytes]]] = {"store": [], "app": []}
    with ExitStack() as stack:
        for name, count in (("store", members), ("app", callers)):
            for _ in range(count):
                process = stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", _MEMBER, name, str(_RATE)],
                        cwd=terminal.directory,
                        env=terminal.environment,
                        stdout=subprocess.PIPE,
                    )
                )
                started[name].append(process)
                stack.callback(_kill, started)
            for process in started[name]:
                assert process.stdout is not None
                assert process.stdout.readline() == b"up\n"
        yield started


def _kill(started: dict[str, list[subprocess.Popen[bytes]]]) -> None:
    """Kill all, so that none has to notice that the others are gone."""
    for process in (*started["store"], *started["app"]):
        process.kill()


def _view(terminal: Terminal, *options: str) -> dict[str, Any]:
    done = terminal.run("top", "--once", "-o", "json", *options)
    assert done.returncode == 0, done.stderr.decode()
    view: dict[str, Any] = json.loads(done.stdout)
    return view


def _check(view: dict[str, Any], members: list[int], callers: list[int]) -> None:
    """Compare a view with the processes that live."""
    nodes = {node["process"]: node for node in view["nodes"]}
    assert sorted(nodes) == sorted([*members, *callers])
    (cluster,) = view["clusters"]
    assert (cluster["cluster"], cluster["members"]) == ("store", len(members))
    assert cluster["rate"] == pytest.approx(_RATE * len(callers), rel=0.2)
    assert 0.015 <= cluster["p50"] <= 1.0
    assert cluster["p50"] <= cluster["p99"]
    for process in callers:
        assert nodes[process]["asked_rate"] == pytest.approx(_RATE, rel=0.2)
    assert all(nodes[process]["clusters"][0]["cluster"] == "store" for process in members)


def _check_kills(members: int, callers: int, kills: int, interval: str) -> None:
    with open_terminal() as terminal, _realm(terminal, members, callers) as started:
        store, app = ([process.pid for process in started[name]] for name in ("store", "app"))
        _check(_view(terminal, "--interval", interval), store, app)
        for process in started["store"][:kills]:
            process.send_signal(signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while len((view := _view(terminal, "--interval", interval))["nodes"]) + len(view["silent"]) > (
            members - kills + callers
        ):
            assert time.monotonic() < until, "killed nodes were still known"
        _check(view, store[kills:], app)
        assert view["silent"] == []


def test_top_is_right_and_right_again_after_members_were_killed() -> None:
    _check_kills(members=4, callers=2, kills=2, interval="3")


@pytest.mark.long
def test_top_is_right_with_50_processes_and_after_12_were_killed() -> None:
    _check_kills(members=40, callers=10, kills=12, interval="5")


@pytest.mark.long
def test_watching_50_processes_costs_each_at_most_a_fifth_of_a_percent_of_a_core() -> None:
    seconds = 20.0
    with open_terminal() as terminal, _realm(terminal, 40, 10) as started:
        pids = [process.pid for several in started.values() for process in several]
        without: list[float] = []
        watched: list[float] = []
        for _ in range(3):
            without.append(_share(pids, seconds))
            with terminal.started("top", "-o", "json") as top:
                assert top.stdout is not None
                top.stdout.readline()  # it is up, and has begun to watch
                watched.append(_share(pids, seconds))
                top.send_signal(signal.SIGINT)
                top.communicate(timeout=PATIENCE)
        cost = (sum(watched) - sum(without)) / len(watched)
        sys.stdout.write(f"without {without}, watched {watched}: {cost:.4%} of a core for each node\n")
        assert cost <= 0.002


def _share(pids: list[int], seconds: float) -> float:
    """Return what share of a core each of these processes takes, on average."""
    before, began = sum(map(_processor_time, pids)), time.monotonic()
    time.sleep(seconds)
    return (sum(map(_processor_time, pids)) - before) / (time.monotonic() - began) / len(pids)


def _processor_time(pid: int) -> float:
    return sum(int(text.split()[0]) for text in _threads(pid)) / 1e9


def _threads(pid: int) -> Iterator[str]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        yield (thread / "schedstat").read_text()
