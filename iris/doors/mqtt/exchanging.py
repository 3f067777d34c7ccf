"""Requests and responses of MQTT 5: a client asks clusters, and serves clusters, by response topics.

::

    $call/greeters/greet     the client publishes a request; the reply comes to its response topic
    $serve/orders            it subscribes, and gets the requests of the cluster; it publishes replies to $reply/NUMBER

Both are of one connection alone: replies go to the connection that has asked, and are taken of the one that was asked.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, final

import trio

from iris.doors.clients import Client
from iris.doors.mqtt import writing
from iris.doors.mqtt.counters import Surroundings
from iris.doors.mqtt.packets import V5, Properties, Property, Publish
from iris.doors.mqtt.payloads import (
    OF_PAYLOADS,
    encoded,
    headers_of,
    is_response_topic,
    payload_headers,
    payload_of,
    payload_properties,
)
from iris.doors.mqtt.wire import Lost
from iris.doors.options import LONGEST, TIMEOUT
from iris.doors.problems import Problem, problem_of
from iris.doors.programs import Asked, AskedProgram
from iris.doors.values import AS_VALUE
from iris.kernel.errors import IrisError, RemoteError
from iris.kernel.names import is_name
from iris.kernel.numerals import read_whole
from iris.patterns.messages import Message, Request
from iris.patterns.request import OVERLOADED
from iris.patterns.service import Unserved

CALL: Final = "$call/"
SERVE: Final = "$serve/"
REPLY: Final = "$reply/"

ERROR: Final = "iris-error"
"""User property of a reply that is an error: its code.  The payload is a text for people."""

_CAPACITY: Final = 16
_MAX_CAPACITY: Final = 1024
"""Requests that a program has at a time, if it does not say, and at most."""

_RETRY_AFTER: Final = 0.1
"""Seconds after which a caller may ask again whose request found no room among the bytes of the program's client."""

_MAX_CODE: Final = 64
_MAX_DETAIL: Final = 1024

Send = Callable[[bytes], Awaitable[None]]


@final
class Exchange:
    """The requests that one connection makes and serves.

    Args:
        around: state of the door.
        client: client of the connection.
        tasks: group of the connection, with which all ends.
        send: sends a packet; raises ``Lost`` if the connection is gone.
        max_size: bytes of a packet that the client takes.
    """

    def __init__(
        self, around: Surroundings, client: Client, tasks: asyncio.TaskGroup, send: Send, max_size: int
    ) -> None:
        self.client: Final = client
        self.counted: Final = around.counted
        self.max_size: Final = max_size
        self._node = around.node
        self._clusters = around.clusters
        self._tasks = tasks
        self._send = send
        self._numbers = itertools.count(1)
        self._asked: dict[str, Asked] = {}
        """Requests that the client has, by the topic of their reply."""
        self._programs: dict[str, _Program] = {}
        """Programs of the client, by the filter."""

    def accept(self, packet: Publish) -> None:
        """Begin a request of the client, or take its reply to one.

        Raises:
            Problem: it is neither, or may not be.
        """
        if packet.topic.startswith(CALL):
            self._ask(packet)
        elif packet.topic.startswith(REPLY):
            self._reply(packet)
        else:
            raise Problem(
                400, "bad_topic", f"{packet.topic!r:.300} is no topic here: of $ there are {CALL} and {REPLY}"
            )

    # -- the client asks ------------------------------------------------------------------------------------

    def _ask(self, packet: Publish) -> None:
        cluster, _, operation = packet.topic.removeprefix(CALL).partition("/")
        response = packet.properties.get(Property.RESPONSE_TOPIC)
        if not is_name(cluster) or (operation and not is_name(operation)):
            raise Problem(400, "bad_topic", f"{packet.topic!r:.300}: write {CALL}CLUSTER or {CALL}CLUSTER/OPERATION")
        if response is None or not is_response_topic(response):
            raise Problem(400, "malformed", "a request has a response topic, to which the reply comes")
        self.client.check("call", cluster)
        payload, headers = payload_of(packet), {**headers_of(packet, self.client), **payload_headers(packet)}
        expiry = packet.properties.get(Property.MESSAGE_EXPIRY)
        timeout = TIMEOUT if expiry is None else min(float(expiry), LONGEST)
        with ExitStack() as stack:
            stack.enter_context(self.client.calling())
            stack.enter_context(self.client.holding())(_size(packet, payload))
            options: dict[str, Any] = {"operation": operation or None, "timeout": timeout, "headers": headers}
            asking = self._request(cluster, payload, options, response, packet.properties)
            task = self._tasks.create_task(self.client.processor.metered(asking))
            kept = stack.pop_all()
            task.add_done_callback(lambda _: kept.close())
        self.counted.called += 1

    async def _request(
        self, cluster: str, payload: object, options: dict[str, Any], response: str, asked: Properties
    ) -> None:
        user: list[tuple[str, str]] = []
        try:
            reply = await self._node.request(cluster, payload, **options)
        except IrisError as error:
            problem = problem_of(error)
            self.counted.refused[problem.status] += 1
            user, reply = [(ERROR, problem.code)], problem.detail.encode("utf-8", "replace")
        data = self._message(response, reply, user, asked)
        if len(data) > self.max_size:
            self.counted.refused[413] += 1
            data = self._message(response, b"the reply is larger than the client takes", [(ERROR, "too_large")], asked)
        if len(data) <= self.max_size:
            await self._send(data)

    @staticmethod
    def _message(topic: str, reply: object, user: list[tuple[str, str]], asked: Properties) -> bytes:
        payload, kind = encoded(reply)
        properties: Properties = {} if kind is None else {Property.CONTENT_TYPE: kind}
        if Property.CORRELATION_DATA in asked:
            properties[Property.CORRELATION_DATA] = asked[Property.CORRELATION_DATA]
        return writing.publish(V5, topic, payload, retain=False, properties={**properties, Property.USER: user})

    # -- the client serves ----------------------------------------------------------------------------------

    async def serve(self, text: str, user: list[tuple[str, str]]) -> None:
        """Have the client serve the cluster that a filter names, from when this returns.

        Args:
            text: the filter.
            user: user properties of the SUBSCRIBE, which may say ``capacity``.

        Raises:
            Problem: it may not, or what it says is malformed.
        """
        cluster, given = text.removeprefix(SERVE), dict(user).get("capacity", str(_CAPACITY))
        capacity = read_whole(given, 1, _MAX_CAPACITY)
        if capacity is None:
            raise Problem(400, "malformed", f"capacity is a whole number from 1 to {_MAX_CAPACITY}")
        if not is_name(cluster):
            raise Problem(400, "bad_topic", f"{text!r:.300}: write {SERVE}CLUSTER")
        self.client.check("serve", cluster)
        former = self._programs.get(text)
        program = _Program(self, text, capacity)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.create_task(self.client.processor.metered(self._serve(cluster, program, ready)))
        await ready
        self._programs[text] = program
        if former is not None:
            former.leaving.set()

    def leave(self, text: str) -> bool:
        """Have the client get no new requests of a filter; return False if it serves none."""
        program = self._programs.pop(text, None)
        if program is None:
            return False
        program.leaving.set()
        return True

    async def _serve(self, cluster: str, program: _Program, ready: asyncio.Future[None]) -> None:
        try:
            async with self.client.streaming(), self._clusters.joined(cluster) as served:
                try:
                    with served.having(program):
                        ready.set_result(None)
                        await program.leaving.wait()
                    await program.until_done()
                finally:
                    program.lose()
        except Problem as problem:
            if not ready.done():  # else its token has ended, and so does the connection
                ready.set_exception(problem)

    def ask(self, packet: Callable[[str], bytes]) -> tuple[str, Asked]:
        """Send a request to the client, whose packet is made with the topic of its reply.

        Raises:
            Unserved, RemoteError: it is not sent.
        """
        topic = f"{REPLY}{next(self._numbers)}"
        data = packet(topic)
        if len(data) > self.max_size:
            raise RemoteError("too_large", f"a request of {len(data)} bytes: the program takes {self.max_size}")
        if not self.put(data):
            raise Unserved(OVERLOADED, "the program has not read what it was sent", _RETRY_AFTER)
        asked = self._asked[topic] = Asked()
        return topic, asked

    def put(self, data: bytes) -> bool:
        """Have a packet sent, whose bytes count until it is; return False if its client has no room for them."""
        try:
            self.client.hold(len(data))
        except Problem:
            return False
        task = asyncio.ensure_future(self._sent(data))
        task.add_done_callback(lambda _: self.client.release(len(data)))
        return True

    async def _sent(self, data: bytes) -> None:
        with suppress(Lost):  # as the task that reads sees, too
            await self._send(data)

    def done(self, topic: str) -> None:
        """Forget a request that nobody waits for any more, or that is answered."""
        self.client.release(self._asked.pop(topic).size)

    def _reply(self, packet: Publish) -> None:
        """Give a reply to who has asked; one that nobody waits for is passed over."""
        asked = self._asked.get(packet.topic)
        if asked is None or asked.reply.done():
            return
        code = dict(packet.properties.get(Property.USER, ())).get(ERROR)
        try:
            if code is None:
                payload = payload_of(packet)
                size = _size(packet, payload)
                self.client.hold(size)
                asked.size = size
                asked.reply.set_result(payload)
                self.counted.served += 1
                return
            if not is_name(code) or len(code) > _MAX_CODE:
                raise Problem(400, "malformed", f"{ERROR} is a name of at most {_MAX_CODE} letters")
            asked.reply.set_exception(RemoteError(code, packet.payload[:_MAX_DETAIL].decode("utf-8", "replace")))
        except Problem as problem:
            error = RemoteError(problem.code, f"the program has answered: {problem.detail}")
            asked.reply.set_exception(error)
            raise


@final
class _Program(AskedProgram[str]):
    """Program that serves by one filter; see ``Program``.

    Attributes:
        leaving: set when it gets no new requests.
    """

    def __init__(self, exchange: Exchange, text: str, capacity: int) -> None:
        super().__init__("MQTT")
        self.capacity = capacity
        self.leaving: Final = asyncio.Event()
        self._exchange = exchange
        self._text = text
        self._done = asyncio.Event()
        self._done.set()

    async def until_done(self) -> None:
        """Wait until it has answered what it has, or is ended."""
        await self._done.wait()

    async def ask(self, request: Request) -> object:
        """See ``Program``."""
        left = max(0.0, request.deadline - trio.current_time())
        user = [*_origin(request)]
        if request.operation is not None:
            user.append(("iris-operation", request.operation))

        def packet(topic: str) -> bytes:
            properties: Properties = {
                Property.MESSAGE_EXPIRY: min(math.ceil(left), 0xFFFF_FFFF), Property.RESPONSE_TOPIC: topic,
                Property.CORRELATION_DATA: topic.removeprefix(REPLY).encode(),
            }  # fmt: skip
            return self._packet(request, properties, user)

        topic, asked = self._exchange.ask(packet)
        self._asked[topic] = asked
        self._done.clear()
        try:
            return await asked.reply
        finally:
            del self._asked[topic]
            self._exchange.done(topic)
            if not self._asked:
                self._done.set()

    def _packet(self, given: Request | Message, properties: Properties, user: list[tuple[str, str]]) -> bytes:
        data, kind = encoded(given.payload)
        properties.update(payload_properties(given.headers))
        if kind is not None:
            properties[Property.CONTENT_TYPE] = kind
        return writing.publish(V5, self._text, data, retain=False, properties={**properties, Property.USER: user})

    async def broadcast(self, message: Message) -> bool:
        """See ``Program``: a broadcast has no response topic."""
        data = self._packet(message, {}, [*_origin(message)])
        return len(data) <= self._exchange.max_size and self._exchange.put(data)

    def end(self) -> None:
        """See ``Program``."""
        self.leaving.set()
        self.lose()

    def lose(self) -> None:
        """Answer for what it was at, as it is gone."""
        super().lose()
        self._done.set()


def _size(packet: Publish, payload: object) -> int:
    """Return the bytes that a payload takes while it is worked on."""
    return len(packet.payload) * (1 if isinstance(payload, bytes) else AS_VALUE)


def _origin(given: Request | Message) -> list[tuple[str, str]]:
    user = [pair for pair in given.headers.items() if pair[0] not in OF_PAYLOADS]
    return [*user, ("iris-sender", given.sender.cluster)]
