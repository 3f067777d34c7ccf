"""One connection of a client that was admitted, from its CONNACK to its end."""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby
from typing import Final, final

from iris.doors.clients import Client
from iris.doors.mqtt import writing
from iris.doors.mqtt.counters import Surroundings
from iris.doors.mqtt.delivering import Options, Subscriptions, message_of
from iris.doors.mqtt.exchanging import Exchange
from iris.doors.mqtt.inbox import RECEIVE_MAXIMUM, Inbox
from iris.doors.mqtt.packets import (
    V3,
    V5,
    Connect,
    Disconnect,
    Parting,
    PingRequest,
    Properties,
    Property,
    Publish,
    Reason,
    Subscribe,
    Unsubscribe,
)
from iris.doors.mqtt.publishing import Publishing, reason_of
from iris.doors.mqtt.reading import OVERHEAD, decode, read_frame
from iris.doors.mqtt.topics import is_state_of_bridge
from iris.doors.mqtt.wire import Lost, Wire
from iris.doors.problems import Problem, problem_of
from iris.kernel.errors import IrisError
from iris.patterns.pubsub.subscribe import Event

_logger: Final = logging.getLogger("iris")

MAX_KEEP_ALIVE: Final = 600
"""Seconds between packets of a client of MQTT 5, which is told so; one of 3.1.1 has what it asks for."""

MAX_SIZE: Final = 1 << 28
"""Size of the largest packet that MQTT has, in bytes."""


@final
class _Goodbye(Exception):
    """The client has said DISCONNECT."""

    def __init__(self, wants_will: bool) -> None:
        super().__init__()
        self.wants_will: Final = wants_will


@final
class MqttConnection:
    """One connection."""

    def __init__(
        self,
        around: Surroundings,
        client: Client,
        connect: Connect,
        wire: Wire,
        assigned: str | None,
    ) -> None:
        self._around = around
        self._counted = around.counted
        self._client = client
        self._connect = connect
        self._level = connect.level
        self._wire = wire
        self._assigned = assigned
        self._publishing = Publishing(around.node, client)
        self._inbox = Inbox(self._release)
        self._held = 0
        """Size of packets that are being read, wait or are being worked on, in bytes."""
        self._ended: asyncio.Future[Parting] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._welcomed = False
        self._max_size: int = connect.properties.get(Property.MAXIMUM_SIZE, MAX_SIZE)
        keep_alive = connect.keep_alive
        if self._level == V5 and not 0 < keep_alive <= MAX_KEEP_ALIVE:
            keep_alive = MAX_KEEP_ALIVE
        self._keep_alive = keep_alive

    def end(self, reason: Reason, text: str) -> None:
        """Have the connection end."""
        if not self._ended.done():
            self._ended.set_result(Parting(reason, text))

    @property
    def is_ended(self) -> bool:
        """True if it ends, or will as soon as it begins."""
        return self._ended.done()

    async def wait_gone(self) -> None:
        """Wait until the client is served no more, and its will is published if it is to be."""
        await self._gone.wait()

    def leave(self) -> None:
        """Note that nothing is done for the client any more."""
        self._gone.set()

    async def run(self) -> None:
        """Serve the client until one side ends the connection; then do what its will says."""
        parting: Parting | None = None
        has_will = True
        try:
            async with self._client.streaming(), asyncio.TaskGroup() as tasks:
                exchange = Exchange(self._around, self._client, tasks, self._wire.send, self._max_size)
                deliver = Subscriptions(self._around, self._client, self._level, tasks, self._deliver, exchange)
                await self._welcome()
                for work in (self._read(), self._work(deliver, exchange)):
                    tasks.create_task(self._client.processor.metered(work))
                tasks.create_task(self._wait_end())
        except Problem as problem:  # its token has ended, or it may not have another connection
            reason = Reason.NOT_AUTHORIZED if problem.status == 401 else Reason.QUOTA_EXCEEDED
            parting = Parting(reason, problem.detail)
            has_will = self._welcomed
        except BaseExceptionGroup as group:
            parting, wants_will = self._end_of(group)
            has_will = wants_will and self._welcomed
        finally:
            self._release(self._held)
        async with asyncio.TaskGroup() as tasks:  # who comes back waits for the will, not for the former connection
            if parting is not None:
                tasks.create_task(self._part(parting))
            will = self._connect.will
            if has_will and will is not None and not is_state_of_bridge(will.topic):
                await self._publish_will(will)
            self.leave()

    def _end_of(self, group: BaseExceptionGroup[BaseException]) -> tuple[Parting | None, bool]:
        """Return what the client is told of the end, and whether its will is to be published."""
        own, rest = group.split((_Goodbye, Parting, Lost))
        if rest is not None:
            _logger.error(
                "the door failed a client of MQTT, %s",
                self._client.name,
                exc_info=rest,
                extra={"door": "mqtt", "client": self._client.name},
            )
            return Parting(Reason.UNSPECIFIED, "the door has failed"), True
        assert own is not None
        error = own.exceptions[0]
        if not isinstance(error, Parting):
            return None, not isinstance(error, _Goodbye) or error.wants_will
        _logger.info(
            "client %s of MQTT is disconnected: %s",
            self._client.name,
            error,
            extra={"door": "mqtt", "client": self._client.name},
        )
        return error, True

    async def _part(self, parting: Parting) -> None:
        make = writing.disconnect if self._welcomed else writing.refusal
        await self._wire.part(writing.within(self._max_size, make, self._level, parting))

    async def _publish_will(self, will: Publish) -> None:
        """Publish the will by the rights that its client has now: its token may have been replaced."""
        try:
            client = self._around.clients.named(self._client.name)
            client.check_rate()
            client.charge(will.size)
            await Publishing(self._around.node, client).publish_will(will)
            self._counted.published += 1
        except (Problem, IrisError) as error:
            problem = problem_of(error) if isinstance(error, IrisError) else error
            self._counted.refused[problem.status] += 1
            self._around.log_once(self._client.name, "will", f"its will was not published: {error}")

    async def _welcome(self) -> None:
        asked = self._connect
        properties: Properties = {Property.SESSION_EXPIRY: 0, Property.MAXIMUM_QOS: 1}
        limits = {
            Property.RECEIVE_MAXIMUM: RECEIVE_MAXIMUM,
            Property.MAXIMUM_SIZE: self._around.max_payload + OVERHEAD,
            Property.ALIAS_MAXIMUM: 0,
        }
        if self._assigned is not None:
            properties[Property.ASSIGNED_CLIENT_ID] = self._assigned
        if self._keep_alive != asked.keep_alive:
            properties[Property.SERVER_KEEP_ALIVE] = self._keep_alive
        data = writing.connack(self._level, Reason.SUCCESS, properties | limits)
        if len(data) > self._max_size:  # beyond these a client is disconnected, or not read
            data = writing.connack(self._level, Reason.SUCCESS, properties)
        if len(data) > self._max_size:
            raise Parting(Reason.TOO_LARGE, "the client takes no packet that is as large as its welcome")
        await self._wire.send(data)
        self._welcomed = True

    def _hold(self, size: int) -> None:
        try:
            self._client.hold(size)
        except Problem as problem:
            raise Parting(Reason.QUOTA_EXCEEDED, problem.detail) from None
        self._held += size

    def _release(self, size: int) -> None:
        self._client.release(size)
        self._held -= size

    # -- the tasks of a connection --------------------------------------------------------------------------

    async def _wait_end(self) -> None:
        raise await self._ended

    async def _read(self) -> None:
        """Read what the client sends, until the end of it; that comes after all that was sent before."""
        patience = 1.5 * self._keep_alive or None
        try:
            while True:
                try:
                    async with asyncio.timeout(patience):
                        first, body = await read_frame(self._wire.reader, self._around.max_payload, self._hold)
                except TimeoutError:
                    raise Parting(Reason.KEEP_ALIVE_TIMEOUT, "no whole packet was heard from the client") from None
                packet = decode(first, body, self._level)
                if not isinstance(packet, Publish | Subscribe | Unsubscribe):
                    self._release(len(body))
                if isinstance(packet, PingRequest):
                    await self._wire.send(writing.PINGRESP)
                elif isinstance(packet, Disconnect):
                    raise _Goodbye(packet.wants_will)
                elif isinstance(packet, Publish) and packet.qos > 1:
                    raise Parting(Reason.QOS_NOT_SUPPORTED, "QoS 2, which is not offered here")
                elif isinstance(packet, Publish) and is_state_of_bridge(packet.topic):
                    self._release(len(body))
                    if packet.qos:
                        data = writing.puback(self._level, packet.packet_id, Reason.SUCCESS, "")
                        await self._answer(data, data)
                elif isinstance(packet, Publish) and len(packet.payload) > self._around.max_payload:
                    self._counted.refused[413] += 1
                    detail = f"a payload of {len(packet.payload)} bytes: {self._around.max_payload} are the limit"
                    raise Parting(Reason.TOO_LARGE, detail)
                else:
                    await self._inbox.put(packet, len(body))
                await self._client.processor.rest()  # of many that are here already, others wait for one only
        except (asyncio.IncompleteReadError, OSError):
            self._inbox.end(Lost())
        except (Parting, _Goodbye, Lost) as end:
            self._inbox.end(end)

    async def _work(self, subscriptions: Subscriptions, exchange: Exchange) -> None:
        """Do what the client asks for, in its order."""
        while True:
            for kind, packets in groupby(await self._inbox.pop_all(), type):
                if kind is Publish:
                    await self._publish([packet for packet in packets if isinstance(packet, Publish)], exchange)
                    continue
                for packet in packets:
                    await self._client.processor.rest()
                    if isinstance(packet, Subscribe):
                        reasons, text = await subscriptions.subscribe(packet)
                        await self._answer(
                            writing.suback(self._level, packet.packet_id, reasons, text),
                            writing.suback(self._level, packet.packet_id, reasons, ""),
                        )
                    elif isinstance(packet, Unsubscribe):
                        reasons = [await subscriptions.unsubscribe(one) for one in packet.filters]
                        data = writing.unsuback(self._level, packet.packet_id, reasons)
                        await self._answer(data, data)

    async def _publish(self, packets: list[Publish], exchange: Exchange) -> None:
        paused = await self._client.pace(sum(packet.size for packet in packets), len(packets))
        self._counted.paused += paused  # now, as others have counted meanwhile
        await self._client.processor.rest()
        problems: list[Problem | None] = []
        for exchanged, run in groupby(packets, lambda packet: packet.topic.startswith("$")):
            if exchanged:
                problems += [_problem_with(exchange, packet) for packet in run]
            else:
                results = await self._publishing.publish([*run])
                self._counted.published += results.count(None)
                problems += results
        for packet, problem in zip(packets, problems, strict=True):
            if problem is not None:
                self._counted.refused[problem.status] += 1
                self._around.log_once(self._client.name, problem.code, problem.detail)
            if not packet.qos:
                continue
            if problem is not None and self._level == V3:
                raise Parting(reason_of(problem), problem.detail)
            reason, text = (Reason.SUCCESS, "") if problem is None else (reason_of(problem), problem.detail)
            await self._answer(
                writing.puback(self._level, packet.packet_id, reason, text),
                writing.puback(self._level, packet.packet_id, reason, ""),
            )

    async def _answer(self, full: bytes, brief: bytes) -> None:
        """Send an answer with a text for people, or without it where the client does not want one or has no room."""
        wants = self._connect.properties.get(Property.PROBLEM_INFORMATION, 1)
        data = full if wants and len(full) <= self._max_size else brief
        if len(data) > self._max_size:
            raise Parting(Reason.TOO_LARGE, "the client takes no packet that is as large as its answer")
        await self._wire.send(data)

    async def _deliver(self, event: Event, options: Options, missed: int) -> int:
        if event.retained and options.skips_retained:
            return missed
        data = message_of(self._level, event, options.identifier, missed)
        if data is None:
            self._counted.untellable += 1
            return missed
        if len(data) > self._max_size:
            self._counted.missed += 1
            return missed + 1
        await self._wire.send(data)
        self._counted.delivered += 1
        return 0


def _problem_with(exchange: Exchange, packet: Publish) -> Problem | None:
    """Have a request made or a reply taken; return why it is not."""
    try:
        exchange.accept(packet)
    except Problem as problem:
        return problem
    return None
