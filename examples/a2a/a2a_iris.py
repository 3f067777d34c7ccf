"""A transport for A2A: the agent at ``iris://CLUSTER`` is whoever serves the cluster.  Tried with a2a-sdk 1.3.

Messages are A2A's own, as gRPC has them: a call is a request, a stream a tunnel.  Errors travel by A2A's reasons.
"""

import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from a2a.auth.user import User
from a2a.client import ClientCallContext, ClientFactory
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.client.transports.base import ClientTransport
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import RequestHandler
from a2a.types import a2a_pb2
from a2a.utils.errors import A2A_ERROR_REASONS, A2A_REASON_TO_ERROR, A2AError, InvalidRequestError, TaskNotFoundError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

import iris.aio

BINDING = "iris"  # the ``protocol_binding`` of an interface in the card
METHODS = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"].methods_by_name
HANDLERS = {
    "SendMessage": "on_message_send",
    "SendStreamingMessage": "on_message_send_stream",
    "GetTask": "on_get_task",
    "ListTasks": "on_list_tasks",
    "CancelTask": "on_cancel_task",
    "SubscribeToTask": "on_subscribe_to_task",
    "CreateTaskPushNotificationConfig": "on_create_task_push_notification_config",
    "GetTaskPushNotificationConfig": "on_get_task_push_notification_config",
    "ListTaskPushNotificationConfigs": "on_list_task_push_notification_configs",
    "DeleteTaskPushNotificationConfig": "on_delete_task_push_notification_config",
    "GetExtendedAgentCard": "on_get_extended_agent_card",
}


class Caller(User):
    """The cluster that asks, as its certificate proves it: a task is seen only by the cluster that began it."""

    is_authenticated = True
    user_name = ""

    def __init__(self, cluster: str) -> None:
        self.user_name = cluster


def agent(cluster: str, card: a2a_pb2.AgentCard, handler: RequestHandler) -> iris.aio.Service:
    """Return the service by which each member of a cluster is the agent."""
    service = iris.aio.Service(cluster)

    def called(name: str, payload: Any, asked: iris.aio.Request | iris.aio.Tunnel) -> Any:
        try:
            message: Any = GetMessageClass(METHODS[name].input_type).FromString(payload)
        except (DecodeError, TypeError) as error:
            raise InvalidRequestError from error
        context = ServerCallContext(
            user=Caller(asked.sender.cluster),
            tenant=message.tenant,
            requested_extensions=get_requested_extensions([asked.headers.get(HTTP_EXTENSION_HEADER, "")]),
        )
        return getattr(handler, HANDLERS[name])(message, context)

    def serve_call(name: str) -> None:
        @service.request(name)
        async def reply(request: iris.aio.Request) -> bytes:
            try:
                result = await called(name, request.payload, request)
                if result is None and name in ("GetTask", "CancelTask"):
                    raise TaskNotFoundError
            except A2AError as error:
                raise iris.RemoteError(*to_wire(error)) from error
            if name == "SendMessage":
                field = "task" if isinstance(result, a2a_pb2.Task) else "message"
                result = a2a_pb2.SendMessageResponse(**{field: result})
            return b"" if result is None else result.SerializeToString()

    def serve_stream(name: str) -> None:
        @service.tunnel(name)
        async def send(tunnel: iris.aio.Tunnel) -> None:
            try:
                async with aclosing(called(name, await tunnel.receive(), tunnel)) as events:
                    async for event in events:
                        await tunnel.send(to_stream_response(event).SerializeToString())
            except A2AError as error:
                await tunnel.send(to_wire(error))

    @service.request("GetAgentCard")
    async def get_agent_card(_: iris.aio.Request) -> bytes:
        return card.SerializeToString()

    for name in HANDLERS:
        (serve_stream if METHODS[name].server_streaming else serve_call)(name)
    return service


def to_wire(error: A2AError) -> tuple[str, str]:
    return A2A_ERROR_REASONS.get(type(error), "INTERNAL_ERROR"), error.message


def from_wire(reason: str, message: str) -> A2AError:
    return A2A_REASON_TO_ERROR.get(reason, A2AClientError)(message)


@contextmanager
def errors_of_a2a() -> Iterator[None]:
    try:
        yield
    except iris.RequestTimeout as error:
        raise A2AClientTimeoutError(str(error)) from error
    except iris.RemoteError as error:
        raise from_wire(error.code, error.message) from error
    except iris.IrisError as error:
        raise A2AClientError(str(error)) from error


def call(name: str) -> Any:
    async def ask(self: "IrisTransport", request: Any, *, context: ClientCallContext | None = None) -> Any:
        with errors_of_a2a():
            reply = await self.node.request(self.cluster, request.SerializeToString(), **self.options(name, context))
        return GetMessageClass(METHODS[name].output_type).FromString(reply)

    return ask


def stream(name: str) -> Any:
    async def receive(
        self: "IrisTransport", request: Any, *, context: ClientCallContext | None = None
    ) -> AsyncGenerator[a2a_pb2.StreamResponse]:
        with errors_of_a2a():
            async with self.node.open_tunnel(self.cluster, **self.options(name, context)) as tunnel:
                await tunnel.send(request.SerializeToString())
                async for event in tunnel:
                    if not isinstance(event, bytes):
                        raise from_wire(*event)
                    yield a2a_pb2.StreamResponse.FromString(event)

    return receive


class IrisTransport(ClientTransport):
    """What one client sends goes to one member while that lives: the member knows the client's tasks."""

    def __init__(self, node: iris.aio.Node, url: str) -> None:
        self.node, self.cluster, self.key = node, url.removeprefix("iris://"), uuid.uuid4().hex

    def options(self, name: str, context: ClientCallContext | None) -> dict[str, Any]:
        timeout = 60.0 if context is None or context.timeout is None else context.timeout  # of a stream: to open it
        headers = None if context is None else context.service_parameters
        return {"operation": name, "key": self.key, "timeout": timeout, "headers": headers}

    send_message = call("SendMessage")
    send_message_streaming = stream("SendStreamingMessage")
    get_task = call("GetTask")
    list_tasks = call("ListTasks")
    cancel_task = call("CancelTask")
    subscribe = stream("SubscribeToTask")
    create_task_push_notification_config = call("CreateTaskPushNotificationConfig")
    get_task_push_notification_config = call("GetTaskPushNotificationConfig")
    list_task_push_notification_configs = call("ListTaskPushNotificationConfigs")
    delete_task_push_notification_config = call("DeleteTaskPushNotificationConfig")
    get_extended_agent_card = call("GetExtendedAgentCard")

    async def close(self) -> None:
        """Do nothing: the node is the program's."""


def register(factory: ClientFactory, node: iris.aio.Node) -> None:
    """Have a factory make clients that ask by this node."""
    factory.register(BINDING, lambda card, url, config: IrisTransport(node, url))


async def find(node: iris.aio.Node, cluster: str) -> a2a_pb2.AgentCard:
    """Return the card of the agent that a cluster is; waits up to 10 s for the first member."""
    with errors_of_a2a():
        return a2a_pb2.AgentCard.FromString(await node.request(cluster, operation="GetAgentCard", wait=10.0))
