"""Subscriptions of a client: an Iris subscription for each pattern, whose events become packets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, final

from iris.doors.clients import Client
from iris.doors.mqtt import writing
from iris.doors.mqtt.counters import Surroundings
from iris.doors.mqtt.exchanging import SERVE, Exchange
from iris.doors.mqtt.packets import V5, Filter, Parting, Property, Reason, Subscribe
from iris.doors.mqtt.payloads import OF_PROPERTIES, encoded, header_properties
from iris.doors.mqtt.topics import name_of, wanted_of
from iris.doors.problems import Problem, problem_of
from iris.kernel.errors import IrisError
from iris.patterns.pubsub.subscribe import AnnouncedLosses, Event

MISSED: Final = "iris-missed"
"""User property with the number of events that were lost just before a message."""

_REASONS: Final = {
    "not_allowed": Reason.NOT_AUTHORIZED,
    "bad_topic": Reason.FILTER_INVALID,
    "bad_group": Reason.FILTER_INVALID,
    "too_many_subscriptions": Reason.QUOTA_EXCEEDED,
    "too_many_shapes": Reason.QUOTA_EXCEEDED,
    "too_many_groups": Reason.QUOTA_EXCEEDED,
}


@final
@dataclass(frozen=True, slots=True)
class Options:
    """Options of the delivery of one subscription's events."""

    skips_retained: bool
    identifier: int | None


Deliver = Callable[[Event, Options, int], Awaitable[int]]
"""Function that sends an event, with the number of missed ones not reported yet; returns how many are left then."""


@final
class Subscriptions:
    """The subscriptions of one connection; their tasks belong to its group, and end with it."""

    def __init__(
        self,
        around: Surroundings,
        client: Client,
        level: int,
        tasks: asyncio.TaskGroup,
        deliver: Deliver,
        exchange: Exchange,
    ) -> None:
        self._node = around.node
        self._counted = around.counted
        self._client = client
        self._level = level
        self._tasks = tasks
        self._deliver = deliver
        self._exchange = exchange
        self._open: dict[str, list[asyncio.Task[None]]] = {}

    async def subscribe(self, packet: Subscribe) -> tuple[list[Reason], str]:
        """Open subscriptions; return what is said of each filter, and a text if something is wrong.

        Raises:
            Parting: the packet asks for what must not be.
        """
        reasons: list[Reason] = []
        text = ""
        for one in packet.filters:
            await self._client.processor.rest()
            try:
                if self._level == V5 and one.text.startswith(SERVE):
                    await self._exchange.serve(one.text, packet.properties.get(Property.USER, []))
                else:
                    await self._add(one, packet.properties.get(Property.SUBSCRIPTION_ID))
            except Problem as problem:
                reasons.append(_REASONS.get(problem.code, Reason.NOT_ACCEPTED))
                text = text or problem.detail
            else:
                reasons.append(Reason.SUCCESS)  # QoS 0
        return reasons, text

    async def unsubscribe(self, text: str) -> Reason:
        """Close a subscription."""
        if self._exchange.leave(text):
            return Reason.SUCCESS
        tasks = self._open.pop(text, None)
        if tasks is None:
            return Reason.NO_SUBSCRIPTION
        await _stop(tasks)
        return Reason.SUCCESS

    async def _add(self, one: Filter, identifier: int | None) -> None:
        wanted = wanted_of(one.text, sharing=self._level == V5)
        if one.no_local and wanted.group is not None:
            raise Parting(Reason.PROTOCOL_ERROR, "a shared subscription without local messages")
        if one.no_local:
            raise Problem(400, "malformed", "a client gets its own messages too: there is no 'no local' here")
        permitted = [pattern for pattern in wanted.patterns if self._client.token.may("subscribe", pattern)]
        patterns = permitted or wanted.patterns  # of a/# what a right to a.> covers
        former = self._open.get(one.text, [])
        handling = one.retain_handling
        options = Options(handling == 2 or (handling == 1 and bool(former)), identifier)
        opened: list[asyncio.Task[None]] = []
        try:
            for pattern in patterns:
                ready = asyncio.get_running_loop().create_future()
                following = self._follow(pattern, wanted.group, options, len(former), ready)
                opened.append(self._tasks.create_task(self._client.processor.metered(following)))
                await ready
        except (Problem, IrisError) as error:
            await _stop(opened)
            raise (problem_of(error) if isinstance(error, IrisError) else error) from None
        self._open[one.text] = opened
        await _stop(former)  # after it: an event may come twice, but none is lost

    async def _follow(
        self, pattern: str, group: str | None, options: Options, former: int, ready: asyncio.Future[None]
    ) -> None:
        try:
            async with self._client.subscribed(self._node, pattern, group, instead_of=former) as events:
                if not ready.done():
                    ready.set_result(None)
                losses, missed = AnnouncedLosses(events), 0
                if options.skips_retained:
                    losses.begin_anew()  # the last values have come, and may have been too many
                try:
                    async for event in events:
                        self._counted.missed += losses.count()
                        missed = await self._deliver(event, options, missed + losses.before(event))
                        await self._client.processor.rest()  # of many that wait here, others wait for one only
                finally:
                    self._counted.missed += losses.count()
        except (Problem, IrisError) as error:
            if ready.done():
                raise
            ready.set_exception(error)


def message_of(level: int, event: Event, identifier: int | None, missed: int) -> bytes | None:
    """Return an event as a message; None if MQTT cannot have its topic."""
    name = name_of(event.topic)
    if name is None:
        return None
    payload, kind = encoded(event.payload)
    properties = header_properties(event.headers)
    if kind is not None:
        properties[Property.CONTENT_TYPE] = kind
    if identifier is not None:
        properties[Property.SUBSCRIPTION_ID] = identifier
    user = [pair for pair in event.headers.items() if pair[0] != MISSED and pair[0] not in OF_PROPERTIES]
    if missed:
        user.append((MISSED, str(missed)))
    properties[Property.USER] = user
    return writing.publish(level, name, payload, retain=event.retained, properties=properties)


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
