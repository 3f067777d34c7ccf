"""The door: it listens, admits clients, and ends all connections when it closes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import socket
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, final

import iris.aio
from iris.doors.accepting import MIN_SHARE, accept
from iris.doors.bounds import whole
from iris.doors.clients import Client, Clients
from iris.doors.closing import to_the_end
from iris.doors.mqtt import writing
from iris.doors.mqtt.connection import MAX_SIZE, MqttConnection
from iris.doors.mqtt.counters import MqttStatistics, Surroundings
from iris.doors.mqtt.others import OtherDoors, key_of
from iris.doors.mqtt.packets import V3, V5, Connect, Parting, Property, Publish, Reason
from iris.doors.mqtt.publishing import Publishing, reason_of
from iris.doors.mqtt.reading import CONNECT, decode_connect, level_of, password_of, read_frame
from iris.doors.mqtt.topics import is_state_of_bridge
from iris.doors.mqtt.wire import Wire
from iris.doors.problems import Problem
from iris.doors.programs import ServedClusters
from iris.doors.reporting import reporting
from iris.kernel.config import Config
from iris.kernel.names import NodeId

_logger: Final = logging.getLogger("iris")

_CONNECT_WITHIN: Final = 10.0
"""Seconds that a connection has until its CONNECT, the handshake of TLS included."""

_BRIDGE: Final = 0x80
"""The bit of the protocol level by which Mosquitto says that it is a bridge: 0x84 is 3.1.1."""

_CLOSING: Final = 5.0
"""Seconds that connections have to end when the door closes."""

_PROBE_AFTER: Final = 60
"""Seconds after which the system looks whether the other end of a silent connection is still there."""


@final
class MqttDoor:
    """A door for MQTT.  Made by ``open_mqtt_door``."""

    def __init__(self, around: Surroundings, tls: ssl.SSLContext | None, max_connections: int) -> None:
        self._around = around
        self._clients = around.clients
        self._tls = tls
        self._max_connections = max_connections
        self._of_one = max(MIN_SHARE, max_connections // 4)
        self._admitted = Counter[str]()
        """Connections of each client for which there was room, by its name."""
        self._coming_of = Counter[str]()
        """Connections of each client that wait for their turn, or for room, by its name."""
        self._newest: dict[str, MqttConnection] = {}
        """Connection of each client and identifier, by ``key_of`` them."""
        self._connections: dict[MqttConnection, asyncio.Task[None]] = {}
        """All connections, those that end as well, and the task that serves each."""
        self._coming: set[MqttConnection] = set()
        """Connections that wait until the former connection is gone."""
        self.others: Final = OtherDoors(around.node, self._give_up)
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that serve connections, from when their client is known until they are closed."""

    def statistics(self) -> MqttStatistics:
        """Return a snapshot."""
        counted = self._around.counted
        return dataclasses.replace(counted, connections=len(self._connections), refused=counted.refused.copy())

    async def close(self) -> None:
        """End all connections, and wait for their end."""
        await asyncio.sleep(0)  # each task has begun, and knows its connection
        serving = set(self._tasks)
        for task in serving.difference(self._connections.values()):
            task.cancel()  # it waits for its turn
        for connection in self._connections:
            connection.end(Reason.SHUTTING_DOWN, "the door closes")
        if serving:
            await asyncio.wait(serving, timeout=_CLOSING)
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving)

    async def greet(self, accepted: socket.socket) -> None:
        """Find out whose connection this is, and begin to serve it."""
        wire: Wire | None = None
        met: tuple[Client, int, bytes] | None = None
        unauthenticated = self._clients.unauthenticated
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                wire = await unauthenticated.metered(Wire.over(accepted, self._tls, self._around.counted))
                met = await unauthenticated.metered(self._meet(wire))
        except (OSError, asyncio.IncompleteReadError):
            pass  # a stranger who has gone, or has not said in time who it is
        finally:
            if wire is None or met is None:
                self._around.counted.turned_away += 1
                if wire is not None:
                    await unauthenticated.metered(wire.close())
        if wire is not None and met is not None:
            task = asyncio.ensure_future(self._serve(wire, *met))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _meet(self, wire: Wire) -> tuple[Client, int, bytes] | None:
        """Read the CONNECT of a stranger, and return which client it is; or tell it why it is none.

        What is done for a client from here on is in its own time: who comes behind it does not wait for that.
        """
        level = 0
        try:
            first, body = await read_frame(wire.reader, 0)
            if first != CONNECT:
                return None
            level = level_of(body)
            if level not in (V3, V5):
                raise Parting(Reason.UNSUPPORTED_VERSION, f"level {level} of the protocol: there are {V3} and {V5}")
            client = self._client_of(password_of(body))
            if self._coming_of[client.name] >= self._of_one:
                detail = f"{self._of_one} of the client's connections wait for their turn"
                raise Parting(Reason.QUOTA_EXCEEDED, detail)
            return client, level, body
        except Parting as parting:
            await self._refuse(wire, level, parting)
            return None

    async def _serve(self, wire: Wire, client: Client, level: int, body: bytes) -> None:
        """Do all that is done for a client.  What fails here costs this connection only."""
        try:
            connect = await self._admit(wire, client, level, body)
            if connect is None:
                self._around.counted.turned_away += 1
                return
            with _counted(self._admitted, client.name):
                await self._keep(wire, connect, client)
                await wire.close()
        except Exception:
            _logger.exception("the door failed a connection of MQTT", extra={"door": "mqtt", "client": client.name})
        finally:
            await wire.close()

    async def _admit(self, wire: Wire, client: Client, level: int, body: bytes) -> Connect | None:
        """Return what a client says when it comes, if there is room for it; or tell it why it is not let in."""
        max_size = MAX_SIZE
        try:
            with _counted(self._coming_of, client.name):
                async with asyncio.timeout(_CONNECT_WITHIN):
                    await client.processor.wait()
                    with client.processor.working():
                        connect = decode_connect(body)
                        max_size = connect.properties.get(Property.MAXIMUM_SIZE, MAX_SIZE)
                        self._check(client, connect)
                    await client.processor.rest()
                    await self._find_room(client.name, connect.client_id)
                    return connect
        except Parting as parting:
            await client.processor.metered(self._refuse(wire, level, parting, max_size))
        except TimeoutError:
            pass
        return None

    async def _refuse(self, wire: Wire, level: int, parting: Parting, max_size: int = MAX_SIZE) -> None:
        _logger.info("a connection of MQTT is refused: %s", parting, extra={"door": "mqtt"})
        if level:
            # A bridge of Mosquitto sets the highest bit at first, and understands no refusal but that of 3.1.1.
            form = V5 if V5 <= level < _BRIDGE else V3
            await wire.part(writing.within(max_size, writing.refusal, form, parting))

    async def _give_up(self, key: str, door: NodeId) -> None:
        """End a connection that has come back to the door of another node, and return when its will is published."""
        former = self._newest.get(key)
        if former is None:
            return
        if former not in self._coming:
            _end_former(former)
            await former.wait_gone()
        elif self._around.node.id < door:  # it comes to both of us now, and one is to give way
            _end_former(former)

    async def _keep(self, wire: Wire, connect: Connect, client: Client) -> None:
        """Serve a client for as long as its connection lasts."""
        assigned = None if connect.client_id else secrets.token_hex(16)
        connection = MqttConnection(self._around, client, connect, wire, assigned)
        task = asyncio.current_task()
        assert task is not None
        key = key_of(client.name, assigned or connect.client_id)
        former, self._newest[key] = self._newest.get(key), connection
        self._connections[connection] = task
        try:
            self._coming.add(connection)
            if former is not None:
                _end_former(former)
                await former.wait_gone()  # its will comes before all that this connection publishes
            if assigned is None and not connection.is_ended:  # one that has given way ends no other one
                await self.others.end_elsewhere(key)
            self._coming.discard(connection)
            await connection.run()
        finally:
            self._coming.discard(connection)
            connection.leave()
            del self._connections[connection]
            if self._newest.get(key) is connection:
                del self._newest[key]

    def _client_of(self, password: bytes) -> Client:
        try:
            return self._clients.admit(password.decode("utf-8", "replace"))
        except Problem as problem:
            raise Parting(Reason.BAD_PASSWORD, problem.detail) from None

    def _check(self, client: Client, connect: Connect) -> None:
        """Raise ``Parting`` if a client asks for what it does not get."""
        properties = connect.properties
        if Property.AUTHENTICATION_METHOD in properties or Property.AUTHENTICATION_DATA in properties:
            raise Parting(Reason.BAD_AUTHENTICATION, "there is no authentication but by a token as the password")
        if connect.level == V3 and not (connect.client_id or connect.is_clean):
            raise Parting(Reason.CLIENT_ID_NOT_VALID, "a session that is to be kept needs a client identifier")
        if connect.will is not None and not is_state_of_bridge(connect.will.topic):
            self._check_will(client, connect.will)

    async def _find_room(self, client: str, client_id: str) -> None:
        """Return when there is room for a connection, or a replaced one has ended; raise Parting without room."""
        while (full := self._full(client)) is not None:
            former = self._newest.get(key_of(client, client_id))
            if former is None:
                raise full
            _end_former(former)
            await asyncio.wait([self._connections[former]])

    def _full(self, client: str) -> Parting | None:
        """Return why there is no room for another connection of a client; None if there is."""
        if self._admitted.total() >= self._max_connections:
            return Parting(Reason.SERVER_BUSY, f"{self._max_connections} connections at a time are the limit")
        if self._admitted[client] >= self._of_one:
            detail = f"{self._of_one} connections at a time are the limit of a client at this door: close some"
            return Parting(Reason.QUOTA_EXCEEDED, detail)
        return None

    def _check_will(self, client: Client, will: Publish) -> None:
        if will.qos > 1:
            raise Parting(Reason.QOS_NOT_SUPPORTED, "a will of QoS 2, which is not offered here")
        if len(will.payload) > self._around.max_payload:
            raise Parting(Reason.TOO_LARGE, f"a will of more than {self._around.max_payload} bytes")
        try:
            Publishing(self._around.node, client).check(will)
        except Problem as problem:
            raise Parting(reason_of(problem), f"the will: {problem.detail}") from None


@contextmanager
def _counted(counts: Counter[str], name: str) -> Generator[None]:
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


def _end_former(former: MqttConnection) -> None:
    former.end(Reason.TAKEN_OVER, "another connection has this client identifier")


@asynccontextmanager
async def open_mqtt_door(
    node: iris.aio.Node,
    clients: Clients,
    *,
    sockets: list[socket.socket],
    tls: ssl.SSLContext | None = None,
    clusters: ServedClusters | None = None,
    max_connections: int = 1000,
    max_payload: int = Config().max_payload,
) -> AsyncGenerator[MqttDoor]:
    """Let clients use a node by MQTT for as long as the block lasts.

    Args:
        node: node whose place is lent.
        clients: clients that may use it; the password of MQTT is the token.
        sockets: sockets to which they connect; bound, and listening or not.  They are closed.
        tls: context for connections by TLS.  None for plain TCP.
        clusters: clusters that the node serves for programs of other doors as well, which end with the first of these
            doors.  None: this door's own.
        max_connections: at a time, a quarter of them, 4 at least, for one client; who comes then is refused as the
            server is busy, or the quota of the client exceeded.
        max_payload: bytes of a message, at most those of the node's ``Config``.

    Raises:
        ConfigError: ``max_connections`` or ``max_payload`` is no whole number above 0.

    Leaving the block has programs finish that serve, for the node's ``drain_timeout`` at most, tells all clients that
    the door closes, and waits a few seconds for their wills, also if it is cancelled meanwhile.
    """
    max_connections, max_payload = whole(max_connections, "max_connections"), whole(max_payload, "max_payload")
    clusters = clusters or ServedClusters(node)
    door = MqttDoor(Surroundings(node, clients, clusters, max_payload), tls, max_connections)
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # those that are accepted have it as well
        if hasattr(socket, "TCP_KEEPIDLE"):  # pragma: no branch -- Linux
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER)
        one.listen(1024)
        one.setblocking(False)
    listening = [asyncio.ensure_future(accept(one, "MQTT", clients.unauthenticated, door.greet)) for one in sockets]
    listening.append(asyncio.ensure_future(door.others.run()))

    async def close() -> None:
        for task in listening:
            task.cancel()
        await asyncio.wait(listening)
        await clusters.close()
        await door.close()
        for one in sockets:
            one.close()

    try:
        with reporting(node, "mqtt", door.statistics):
            yield door
    finally:
        await to_the_end(close())
