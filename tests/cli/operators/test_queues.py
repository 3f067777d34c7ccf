"""``iris queue status``, ``peek``, ``redrive`` and ``purge``, as people type them."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

import iris
from iris.cli.main import run_command
from tests.support.bridges import BridgeProcess


@pytest.fixture(scope="module")
def bridge() -> Iterator[None]:
    """A running bridge in a realm of its own, with a queue of three jobs and one dead letter."""
    directory = Path(tempfile.mkdtemp(prefix="iris-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IRIS_HOME", str(directory / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(directory))
        with BridgeProcess(directory / "log"):
            trio.run(partial(fill, "jobs"))
            yield
    shutil.rmtree(directory, ignore_errors=True)


async def fill(name: str) -> None:
    async with iris.open_node("workers") as node, node.bridge().queue(name, attempts=1) as jobs:
        await node.wait_for("bridge", timeout=60)
        await jobs.put("broken", key="k", headers={"h": "v"}, timeout=60)
        async with await anext(jobs.receive(1)):
            raise ValueError("no good")
        with trio.fail_after(60):
            while not (await node.request("bridge", {"group": f"queue/{name}"}, operation="queue"))["dead"]:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.02)
        for number in range(2):
            await jobs.put({"n": number}, timeout=60, delay=3600)


@pytest.fixture
def queue(bridge: None, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        capfd.readouterr()
        assert run_command(("queue", *arguments)) == 0, capfd.readouterr().err
        said = capfd.readouterr()
        return said.out or said.err

    return run


def test_a_queue_is_looked_at_mended_and_purged(queue: Callable[..., str]) -> None:
    assert queue("status", "jobs").startswith("queue jobs: 0 waiting, 2 delayed, 0 in hand at 0 workers, 0 events")
    told = json.loads(queue("status", "jobs", "--json"))
    assert (told["delayed"], told["done"], told["dead"]) == (2, 0, 1)
    first, second = map(json.loads, queue("peek", "jobs", "--as", "workers").splitlines())
    assert (first["payload"], second["payload"], first["attempts"], first["state"]) == (
        {"n": 0},
        {"n": 1},
        0,
        "delayed",
    )
    (letter,) = map(json.loads, queue("peek", "jobs.dead", "--as", "workers").splitlines())
    assert (letter["payload"], letter["key"]) == ("broken", "k")
    assert letter["headers"]["dead-error"] == "ValueError: no good"
    assert "1 jobs are in queue jobs again" in queue("redrive", "jobs", "--as", "workers")
    *_, again = map(json.loads, queue("peek", "jobs", "--as", "workers").splitlines())
    assert (again["payload"], again["headers"], again["attempts"]) == ("broken", {"h": "v"}, 0)
    assert "3 jobs of queue jobs are forgotten" in queue("purge", "jobs", "--as", "workers", "--yes")
    assert queue("status", "jobs").startswith("queue jobs: 0 waiting, 0 delayed")


def test_another_cluster_is_told_whose_the_queue_is(
    queue: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    queue("peek", "jobs", "--as", "workers")
    assert run_command(("queue", "peek", "jobs", "--as", "others")) == 1
    assert "belongs to cluster 'workers'" in capfd.readouterr().err


def test_purging_asks_first(bridge: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run_command(("queue", "purge", "jobs", "--as", "workers")) != 0
    assert "Forget every job of queue jobs?" in capfd.readouterr().err


def test_what_dies_again_while_it_is_put_back_stays_dead(queue: Callable[..., str]) -> None:
    ready, ended = threading.Event(), threading.Event()
    died = 0

    async def work() -> None:
        nonlocal died
        async with iris.open_node("workers") as node, node.bridge().queue("hopeless", attempts=1) as jobs:
            await node.wait_for("bridge", timeout=60)
            await jobs.put("broken", timeout=60)
            worker = jobs.receive(1)
            while not ended.is_set():
                with trio.move_on_after(0.1):
                    job = await anext(worker)
                    async with job:
                        died += 1
                        if died <= 20:
                            raise ValueError("no good")
                if died:
                    ready.set()

    thread = threading.Thread(target=trio.run, args=(work,))
    thread.start()
    try:
        assert ready.wait(60)
        said = queue("redrive", "hopeless", "--as", "workers")
    finally:
        ended.set()
        thread.join()
    assert "1 jobs are in queue hopeless again" in said
    assert died == 2
    (letter,) = map(json.loads, queue("peek", "hopeless.dead", "--as", "workers").splitlines())
    assert letter["payload"] == "broken"


def test_letters_that_come_meanwhile_keep_none_of_the_others_back(
    queue: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a high priority come before all that were there, and fill the hand of who puts them back."""
    monkeypatch.setattr("iris.cli.operators.queues.IN_HAND", 3)
    count, ready, ended = 16, threading.Event(), threading.Event()

    async def work() -> None:
        async with iris.open_node("workers") as node, node.bridge().queue("urgent", attempts=1) as jobs:
            await node.wait_for("bridge", timeout=60)
            for number in range(count):
                await jobs.put(number, priority=9 if number < count // 2 else 0, timeout=60)
            worker, died = jobs.receive(16), 0
            while not ended.is_set():
                with trio.move_on_after(0.1):
                    job = await anext(worker)
                    job.fail("no good", permanent=True)
                    died += 1
                if died >= count:
                    ready.set()

    thread = threading.Thread(target=trio.run, args=(work,))
    thread.start()
    try:
        assert ready.wait(60)
        said = queue("redrive", "urgent", "--as", "workers")
    finally:
        ended.set()
        thread.join()
    assert f"{count} jobs are in queue urgent again" in said
    assert "letters are left in urgent.dead: they came meanwhile" in said
