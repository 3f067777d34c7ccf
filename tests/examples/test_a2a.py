"""The transport for A2A: a2a-sdk's own client and server over nodes, and the example."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

import iris
import iris.aio.testing
from tests.support.processes import ROOT

MISSING = "the SDK of A2A is not installed: pip install a2a-sdk"
A2A: Any = pytest.importorskip("a2a.types.a2a_pb2", reason=MISSING)
sdk: Any = pytest.importorskip("a2a.client")
client_errors: Any = pytest.importorskip("a2a.client.errors")
errors: Any = pytest.importorskip("a2a.utils.errors")
proto_helpers: Any = pytest.importorskip("a2a.helpers.proto_helpers")
server: Any = pytest.importorskip("a2a.server.request_handlers")
tasks: Any = pytest.importorskip("a2a.server.tasks")

EXAMPLE = ROOT / "examples" / "a2a"
COMPLETED = A2A.TaskState.TASK_STATE_COMPLETED
CANCELED = A2A.TaskState.TASK_STATE_CANCELED


@pytest.fixture
def a2a_iris(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    yield __import__("a2a_iris")
    del sys.modules["a2a_iris"]


def test_the_example_prints_what_it_promises(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE / "forecast.py")],
        check=False, capture_output=True, text=True, timeout=120,
        env={**os.environ, "IRIS_HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    printed = (
        "Forecaster says what weather comes\n"
        "Kyoto, Monday: sun, for planner\n"
        "Kyoto, Tuesday: rain, for planner\n"
        "TASK_STATE_COMPLETED 2\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


class Agent:
    """Replies with a message or with a task, which may wait until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.seen: list[Any] = []

    async def execute(self, context: Any, event_queue: Any) -> None:
        self.seen.append(context.call_context)
        text = proto_helpers.get_message_text(context.message)
        if text == "message":
            await event_queue.enqueue_event(proto_helpers.new_text_message("hello"))
            return
        task = proto_helpers.new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = tasks.TaskUpdater(event_queue, task.id, task.context_id)
        await updater.add_artifact([proto_helpers.new_text_part("first")])
        if text == "wait":
            await self.open.wait()
        await updater.add_artifact([proto_helpers.new_text_part("last")])
        await updater.complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        await tasks.TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def asked(text: str) -> Any:
    return A2A.SendMessageRequest(message=proto_helpers.new_text_message(text, role=A2A.Role.ROLE_USER))


class Place:
    """Nodes in memory with one agent or several, and clients."""

    def __init__(self, a2a_iris: Any, network: Any, stack: AsyncExitStack) -> None:
        self._a2a_iris, self._network, self._stack = a2a_iris, network, stack
        self.agents: list[Agent] = []
        self.members: list[AsyncExitStack] = []

    async def serve(self) -> None:
        agent, binding = Agent(), self._a2a_iris.BINDING
        interface = A2A.AgentInterface(protocol_binding=binding, url="iris://agents", protocol_version="1.0")
        card = A2A.AgentCard(
            name="agent", description="tries", version="1", default_input_modes=["text/plain"],
            default_output_modes=["text/plain"], capabilities=A2A.AgentCapabilities(streaming=True),
            supported_interfaces=[interface],
            skills=[A2A.AgentSkill(id="try", name="try", description="tries", tags=["try"])],
        )  # fmt: skip
        handler = server.DefaultRequestHandler(agent, tasks.InMemoryTaskStore(), card)
        await self._stack.enter_async_context(aclosing(handler))
        member = await self._stack.enter_async_context(AsyncExitStack())
        node = await member.enter_async_context(self._network.open_node("agents"))
        await member.enter_async_context(node.join("agents", self._a2a_iris.agent("agents", card, handler)))
        self.agents.append(agent)
        self.members.append(member)

    async def node(self, name: str = "planner") -> Any:
        return await self._stack.enter_async_context(self._network.open_node(name))

    async def client(self, node: Any, *, streaming: bool = True) -> Any:
        config = sdk.ClientConfig(streaming=streaming, supported_protocol_bindings=[self._a2a_iris.BINDING])
        factory = sdk.ClientFactory(config)
        self._a2a_iris.register(factory, node)
        return factory.create(await self._a2a_iris.find(node, "agents"))


def run(a2a_iris: Any, work: Callable[[Place], Awaitable[None]], agents: int = 1) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Place]:
        async with (
            iris.aio.testing.autojump_clock(),
            iris.aio.testing.open_network() as network,
            AsyncExitStack() as stack,
        ):
            place = Place(a2a_iris, network, stack)
            for _ in range(agents):
                await place.serve()
            yield place

    async def main() -> None:
        async with opened() as place, asyncio.timeout(60):
            await work(place)

    asyncio.run(main())


def test_a_call_returns_a_task_or_a_message_and_the_agent_knows_who_asks(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        client = await place.client(await place.node(), streaming=False)
        parameters = {"A2A-Extensions": "https://example.com/one, https://example.com/two"}
        context = sdk.ClientCallContext(service_parameters=parameters)
        [event] = [event async for event in client.send_message(asked("task"), context=context)]
        assert (event.task.status.state, len(event.task.artifacts)) == (COMPLETED, 2)
        [call] = place.agents[0].seen
        assert (call.user.user_name, call.user.is_authenticated) == ("planner", True)
        assert call.requested_extensions == {"https://example.com/one", "https://example.com/two"}
        [event] = [event async for event in client.send_message(asked("message"))]
        assert proto_helpers.get_message_text(event.message) == "hello"

    run(a2a_iris, work)


def test_a_stream_ends_with_the_task_and_after_a_message(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        client = await place.client(await place.node())
        events = [event async for event in client.send_message(asked("task"))]
        texts = [proto_helpers.get_stream_response_text(event) for event in events if event.HasField("artifact_update")]
        assert texts == ["first", "last"]
        assert events[0].HasField("task")
        assert events[-1].status_update.status.state == COMPLETED
        [event] = [event async for event in client.send_message(asked("message"))]
        assert proto_helpers.get_message_text(event.message) == "hello"

    run(a2a_iris, work)


def test_who_leaves_a_stream_comes_back_to_its_task(a2a_iris: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work(place: Place) -> None:
        client = await place.client(await place.node())
        async with aclosing(client.send_message(asked("wait"))) as events:
            task_id = (await anext(events)).task.id
        async with aclosing(client.subscribe(A2A.SubscribeToTaskRequest(id=task_id))) as events:
            assert (await anext(events)).task.id == task_id
            place.agents[0].open.set()
            rest = [event async for event in events]
        assert rest[-1].status_update.status.state == COMPLETED
        assert (await client.get_task(A2A.GetTaskRequest(id=task_id))).status.state == COMPLETED

    run(a2a_iris, work)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_task_is_canceled_while_its_stream_runs(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        client = await place.client(await place.node())
        event: Any = None
        async for event in client.send_message(asked("wait")):
            if event.HasField("artifact_update"):
                task = await client.cancel_task(A2A.CancelTaskRequest(id=event.artifact_update.task_id))
                assert task.status.state == CANCELED
        assert event.status_update.status.state == CANCELED

    run(a2a_iris, work)


def test_the_errors_of_a2a_arrive_as_themselves(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        node = await place.node()
        client = await place.client(node)
        [*_, last] = [event async for event in client.send_message(asked("task"))]
        with pytest.raises(errors.TaskNotCancelableError):
            await client.cancel_task(A2A.CancelTaskRequest(id=last.status_update.task_id))
        with pytest.raises(errors.TaskNotFoundError):
            await client.get_task(A2A.GetTaskRequest(id="none"))
        with pytest.raises(errors.TaskNotFoundError):
            [_ async for _ in client.subscribe(A2A.SubscribeToTaskRequest(id="none"))]
        for payload in (b"\xff", "text", None):
            with pytest.raises(iris.RemoteError, match="INVALID_REQUEST"):
                await node.request("agents", payload, operation="GetTask")
        with pytest.raises(client_errors.A2AClientError, match="no reachable member"):
            await a2a_iris.IrisTransport(node, "iris://nobody").get_task(A2A.GetTaskRequest(id="none"))

    run(a2a_iris, work)


def test_a_call_whose_time_is_over_leaves_the_task_at_work(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        node = await place.node()
        client = await place.client(node, streaming=False)
        with pytest.raises(client_errors.A2AClientTimeoutError):
            [_ async for _ in client.send_message(asked("wait"), context=sdk.ClientCallContext(timeout=0.5))]
        [task] = (await client.list_tasks(A2A.ListTasksRequest())).tasks
        assert task.status.state != COMPLETED
        async with aclosing((await place.client(node)).subscribe(A2A.SubscribeToTaskRequest(id=task.id))) as events:
            await anext(events)
            place.agents[0].open.set()
            rest = [event async for event in events]
        assert rest[-1].status_update.status.state == COMPLETED

    run(a2a_iris, work)


def test_a_stream_whose_member_leaves_does_not_look_finished(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        client = await place.client(await place.node())
        async with asyncio.TaskGroup() as group, aclosing(client.send_message(asked("wait"))) as events:
            assert (await anext(events)).HasField("task")
            group.create_task(place.members[0].aclose())
            with pytest.raises(client_errors.A2AClientError):
                [_ async for _ in events]

    run(a2a_iris, work)


def test_each_client_has_its_tasks_at_one_member(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        node = await place.node()
        await node.wait_for("agents", members=2)
        for _ in range(16):
            client = await place.client(node)
            [*_, last] = [event async for event in client.send_message(asked("task"))]
            task = await client.get_task(A2A.GetTaskRequest(id=last.status_update.task_id))
            assert task.status.state == COMPLETED
        assert all(agent.seen for agent in place.agents)

    run(a2a_iris, work, agents=2)


def test_another_cluster_does_not_see_a_task(a2a_iris: Any) -> None:
    async def work(place: Place) -> None:
        client, other = await place.client(await place.node()), await place.client(await place.node("stranger"))
        [*_, last] = [event async for event in client.send_message(asked("task"))]
        with pytest.raises(errors.TaskNotFoundError):
            await other.get_task(A2A.GetTaskRequest(id=last.status_update.task_id))
        assert list((await other.list_tasks(A2A.ListTasksRequest())).tasks) == []

    run(a2a_iris, work)
