"""The broker for taskiq: what taskiq's own tests ask of brokers, and workers that die."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import iris.aio
from tests.support.async_tests import on_asyncio
from tests.support.bridges import open_aio_bridge
from tests.support.processes import Child, bridge_child, open_realm

taskiq = pytest.importorskip("taskiq")

from taskiq import (  # noqa: E402
    AckableMessage,
    BrokerMessage,
    Context,
    TaskiqDepends,
    TaskiqEvents,
    TaskiqMessage,
    TaskiqState,
)
from taskiq.receiver import Receiver  # noqa: E402
from taskiq.utils import maybe_awaitable  # noqa: E402

from iris.aio.taskiq import BrokerOptions, IrisBroker  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_home")


@asynccontextmanager
async def open_broker(tmp_path: Path, **options: Any) -> AsyncGenerator[tuple[IrisBroker, iris.aio.Node]]:
    """Open a bridge and start a broker on it."""
    settings: dict[str, Any] = {"backoff": 0.01, "timeout": 60, **options}
    broker = IrisBroker("tasks", options=BrokerOptions(**settings))
    async with (
        iris.aio.open_node("bridge") as serving,
        open_aio_bridge(serving, topics=[">"], directory=tmp_path / "log"),
    ):
        await broker.startup()
        try:
            yield broker, serving
        finally:
            await broker.shutdown()


def run(work: Callable[[IrisBroker, iris.aio.Node], Awaitable[None]], tmp_path: Path, **options: Any) -> None:
    async def main() -> None:
        async with open_broker(tmp_path, **options) as (broker, node):
            await work(broker, node)

    asyncio.run(main())


def message(data: bytes = b"message", **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id="1", task_name="name", message=data, labels=labels)


async def status(node: iris.aio.Node) -> dict[str, Any]:
    found: dict[str, Any] = await node.request("bridge", {"group": "queue/tasks"}, operation="queue")
    return found


async def until_status(node: iris.aio.Node, **wanted: int) -> None:
    async with asyncio.timeout(60):
        while not wanted.items() <= (await status(node)).items():
            await asyncio.sleep(0.01)


@on_asyncio()
async def test_a_broker_that_was_not_started_says_so() -> None:
    broker = IrisBroker()
    with pytest.raises(ValueError, match="start the broker first"):
        await broker.kick(message())
    with pytest.raises(ValueError, match="start the broker first"):
        await anext(broker.listen())
    await broker.shutdown()


@on_asyncio()
async def test_a_program_that_finds_no_bridge_is_told_in_time() -> None:
    with pytest.raises(iris.RequestTimeout, match="cluster 'bridge' has 0 of 1 members"):
        await IrisBroker(options=BrokerOptions(timeout=0.2)).startup()


@pytest.mark.parametrize(
    ("worker", "events"),
    [
        (True, (TaskiqEvents.WORKER_STARTUP, TaskiqEvents.WORKER_SHUTDOWN)),
        (False, (TaskiqEvents.CLIENT_STARTUP, TaskiqEvents.CLIENT_SHUTDOWN)),
    ],
)
def test_events_of_its_life_are_handled(tmp_path: Path, worker: bool, events: tuple[TaskiqEvents, ...]) -> None:
    seen: list[TaskiqEvents] = []

    async def main() -> None:
        broker = IrisBroker("tasks", options=BrokerOptions(timeout=60))
        broker.is_worker_process = worker
        for event in TaskiqEvents:

            @broker.on_event(event)
            def note(_: TaskiqState, event: TaskiqEvents = event) -> None:
                seen.append(event)

        async with (
            iris.aio.open_node("bridge") as serving,
            open_aio_bridge(serving, topics=[">"], directory=tmp_path / "log"),
        ):
            await broker.startup()
            await broker.shutdown()

    asyncio.run(main())
    assert tuple(seen) == events


def test_what_is_kicked_is_received_as_it_is_and_done_when_it_is_acknowledged(tmp_path: Path) -> None:
    async def work(broker: IrisBroker, node: iris.aio.Node) -> None:
        await broker.kick(message(b"wrong"))
        received = await anext(broker.listen())
        assert isinstance(received, AckableMessage)
        assert received.data == b"wrong"
        assert (await status(node))["done"] == 0
        await maybe_awaitable(received.ack())
        assert (await status(node))["done"] == 1

    run(work, tmp_path)


def test_labels_are_options_of_the_job(tmp_path: Path) -> None:
    async def work(broker: IrisBroker, node: iris.aio.Node) -> None:
        begun = asyncio.get_running_loop().time()
        await broker.kick(message(b"late", delay="5"))
        await broker.kick(message(b"gone", expires="0.01", delay="0.1"))
        await broker.kick(message(b"plain", other="x"))
        tasks = broker.listen()
        taken = [await anext(tasks) for _ in range(2)]
        assert [one.data for one in taken] == [b"plain", b"late"]
        assert asyncio.get_running_loop().time() - begun >= 5
        await until_status(node, expired=1)
        with pytest.raises(ValueError, match="'soon'"):
            await broker.kick(message(delay="soon"))

    run(work, tmp_path)


def test_a_task_runs_is_sent_again_and_tried_again_as_with_any_broker(tmp_path: Path) -> None:
    runs: list[tuple[int, str | None]] = []

    async def work(broker: IrisBroker, node: iris.aio.Node) -> None:
        @broker.task
        async def add(number: int, context: Context = TaskiqDepends()) -> None:  # noqa: B008 -- as taskiq wants it
            again = context.message.labels.get("X-Taskiq-requeue")
            runs.append((number, again))
            if again is None:
                await context.requeue()

        @broker.task
        def fail() -> None:
            runs.append((-1, None))
            raise ValueError("it fails")

        await add.kiq(7)
        await fail.kicker().with_labels(priority=-1).kiq()
        ended = asyncio.Event()
        receiver = Receiver(broker, run_startup=False, max_async_tasks=10)
        listening = asyncio.create_task(receiver.listen(ended))
        await until_status(node, done=3)
        ended.set()
        await listening

    run(work, tmp_path)
    assert sorted(runs, key=str) == sorted([(7, None), (7, "1"), (-1, None)], key=str)


def test_a_task_that_no_worker_knows_becomes_a_dead_letter(tmp_path: Path) -> None:
    async def work(broker: IrisBroker, node: iris.aio.Node) -> None:
        ended = asyncio.Event()
        receiver = Receiver(broker, run_startup=False, max_async_tasks=10)
        listening = asyncio.create_task(receiver.listen(ended))
        sent = TaskiqMessage(task_id="1", task_name="unknown", labels={}, args=[], kwargs={})
        await broker.kick(broker.formatter.dumps(sent))
        await until_status(node, dead=1)
        ended.set()
        await listening
        async with node.bridge().queue("tasks.dead") as letters, await anext(letters.receive()) as letter:
            assert b"unknown" in letter.payload
            assert letter.headers["taskiq-name"] == "unknown"
            assert "this worker knows no task 'unknown'" in letter.headers["dead-error"]

    run(work, tmp_path, attempts=2)


def test_what_is_no_message_of_taskiq_harms_no_task(tmp_path: Path) -> None:
    async def work(broker: IrisBroker, node: iris.aio.Node) -> None:
        async with node.bridge().queue("tasks") as tasks:
            for payload in ({"not": "bytes"}, b"nothing that a broker has sent"):
                await tasks.put(payload, timeout=60)
        await broker.kick(message(b"next"))
        assert (await anext(broker.listen())).data == b"next"
        await until_status(node, dead=2)

    run(work, tmp_path)


def test_a_task_that_takes_longer_than_its_lease_is_done_once(tmp_path: Path) -> None:
    async def work(broker: IrisBroker, node: iris.aio.Node) -> None:
        await broker.kick(message(b"long"))
        tasks = broker.listen()
        held = await anext(tasks)
        waiting = asyncio.create_task(anext(tasks))
        done, _ = await asyncio.wait((waiting,), timeout=3)
        assert not done, "nobody else has it"
        await maybe_awaitable(held.ack())
        assert (await status(node))["done"] == 1
        waiting.cancel()

    run(work, tmp_path, lease=1.0)


def test_a_broker_that_ends_gives_back_what_is_not_acknowledged_at_once(tmp_path: Path) -> None:
    async def work(broker: IrisBroker, node: iris.aio.Node) -> None:
        await broker.kick(message(b"task"))
        held = await anext(broker.listen())
        await broker.shutdown()
        other = IrisBroker("tasks", options=BrokerOptions(timeout=60))
        await other.startup()
        async with asyncio.timeout(30):
            assert (await anext(other.listen())).data == held.data
        with pytest.raises(iris.aio.ClosedResourceError, match="was released before"):
            await maybe_awaitable(held.ack())
        await other.shutdown()

    run(work, tmp_path, lease=600.0)


def test_every_task_is_done_whichever_worker_process_is_killed() -> None:
    """Twenty tasks; the first worker is killed with SIGKILL in the middle, another one takes what it had."""
    with open_realm() as directory:
        record = directory / "record"
        record.touch()
        command = [
            sys.executable, "-m", "taskiq", "worker", "tests.support.programs.taskiq_tasks:broker",
            "--workers", "1", "--max-async-tasks", "4",
        ]  # fmt: skip
        environment = {"RECORD": str(record)}
        bridge = bridge_child(directory)
        workers = [
            Child(command, ready="Listening started", log=directory / f"worker{number}.txt", environment=environment)
            for number in range(2)
        ]

        def noted(kind: str) -> list[list[str]]:
            return [line.split() for line in record.read_text().splitlines() if line[0] == kind]

        async def main() -> None:
            from tests.support.programs.taskiq_tasks import broker, work

            await broker.startup()
            for number in range(20):
                await work.kiq(number, 0.2)
            async with asyncio.timeout(120):
                while len(noted("B")) < 6:
                    await asyncio.sleep(0.01)
                os.kill(int(noted("B")[-1][2]), signal.SIGKILL)
                workers[0].end()
                workers[1].start()
                while len({number for _, number, _ in noted("D")}) < 20:
                    await asyncio.sleep(0.05)
            await broker.shutdown()

        try:
            bridge.start()
            workers[0].start()
            asyncio.run(main())
        finally:
            for child in (*workers, bridge):
                child.end()
        assert len({process for _, _, process in noted("B")}) >= 2
