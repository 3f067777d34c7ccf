"""An agent of A2A, and a planner that finds it by the name of its cluster.

Run it: python examples/a2a/forecast.py
"""

import asyncio
from contextlib import aclosing

import a2a_iris
from a2a.client import ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import (
    get_message_text,
    get_stream_response_text,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2

import iris.aio

CARD = a2a_pb2.AgentCard(
    name="Forecaster",
    description="says what weather comes",
    version="1.0.0",
    supported_interfaces=[
        a2a_pb2.AgentInterface(protocol_binding=a2a_iris.BINDING, url="iris://forecaster", protocol_version="1.0")
    ],
    capabilities=a2a_pb2.AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[a2a_pb2.AgentSkill(id="forecast", name="Forecast", description="two days of a place", tags=["weather"])],
)


class Forecaster(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        caller, place = context.call_context.user.user_name, get_message_text(context.message)
        for day in ("Monday: sun", "Tuesday: rain"):
            await updater.add_artifact([new_text_part(f"{place}, {day}, for {caller}")])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def plan(node: iris.aio.Node) -> None:
    factory = ClientFactory(ClientConfig(supported_protocol_bindings=[a2a_iris.BINDING]))
    a2a_iris.register(factory, node)
    card = await a2a_iris.find(node, "forecaster")
    print(f"{card.name} {card.description}")
    async with factory.create(card) as client:
        message = new_text_message("Kyoto", role=a2a_pb2.Role.ROLE_USER)
        async for event in client.send_message(a2a_pb2.SendMessageRequest(message=message)):
            if event.HasField("artifact_update"):
                print(get_stream_response_text(event))
                task_id = event.artifact_update.task_id
        task = await client.get_task(a2a_pb2.GetTaskRequest(id=task_id))
        print(a2a_pb2.TaskState.Name(task.status.state), len(task.artifacts))


async def main() -> None:
    async with (
        aclosing(DefaultRequestHandler(Forecaster(), InMemoryTaskStore(), CARD)) as handler,
        iris.aio.open_node("forecaster") as server,
        server.join("forecaster", a2a_iris.agent("forecaster", CARD, handler)),
        iris.aio.open_node("planner") as node,
    ):
        await plan(node)


if __name__ == "__main__":
    asyncio.run(main())
