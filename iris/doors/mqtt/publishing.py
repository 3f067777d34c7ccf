"""Publishing for a client: from packets to events, one after the other, and what became of each.

QoS 1 is a confirmed event: it is acknowledged once every durable subscriber has it on disk, and is refused where there
is none.  Those that come together are written to disk together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, final

import iris.aio
from iris.doors.clients import Client
from iris.doors.mqtt.packets import Publish, Reason
from iris.doors.mqtt.payloads import headers_of, payload_of, property_headers
from iris.doors.mqtt.topics import topic_of
from iris.doors.problems import Problem, problem_of
from iris.kernel.errors import IrisError, NotSent

_CONFIRMED_WITHIN: Final = 5.0
"""Seconds that durable subscribers have for a message of QoS 1."""

_REASONS: Final = {
    "not_allowed": Reason.NOT_AUTHORIZED,
    "bad_topic": Reason.TOPIC_INVALID,
    "bad_payload": Reason.PAYLOAD_INVALID,
    "too_large": Reason.QUOTA_EXCEEDED,
    "too_many_calls": Reason.QUOTA_EXCEEDED,
    "too_much_retained": Reason.QUOTA_EXCEEDED,
    "malformed": Reason.NOT_ACCEPTED,
    "not_sent": Reason.NOT_ACCEPTED,
    "timeout": Reason.NOT_ACCEPTED,
}
"""Reason codes of MQTT 5 for problems.  An event that no durable subscriber has is *not accepted*: 0x10, no matching
subscribers, would tell the client that it was."""


class _Event(NamedTuple):
    topic: str
    payload: object
    headers: dict[str, str]


def reason_of(problem: Problem) -> Reason:
    """Return what MQTT 5 says of a problem with a message."""
    return _REASONS.get(problem.code, Reason.UNSPECIFIED)


@final
class Publishing:
    """Publishes for one client, in its order."""

    def __init__(self, node: iris.aio.Node, client: Client) -> None:
        self._node = node
        self._client = client

    def check(self, packet: Publish) -> None:
        """Raise Problem unless a message can be published later."""
        self._event(packet)

    async def publish(self, packets: Sequence[Publish]) -> list[Problem | None]:
        """Publish messages, and return for each what went wrong."""
        results: list[Problem | None] = []
        together: list[Publish] = []
        for packet in packets:
            if packet.qos and not packet.retain:
                together.append(packet)
                continue
            results += await self._confirmed(together)
            results.append(await self._one(packet))
            together = []
        return results + await self._confirmed(together)

    async def publish_will(self, will: Publish) -> None:
        """Publish the last will of a client: confirmed if that is asked for and can be, which nobody is told.

        Raises:
            Problem, IrisError: it cannot be published.
        """
        event = self._event(will)
        try:
            await self._put(event, will, confirm=will.qos > 0)
        except NotSent:
            if not will.qos:
                raise
            await self._put(event, will, confirm=False)

    async def _put(self, event: _Event, packet: Publish, *, confirm: bool) -> None:
        topic, payload, headers = event
        await self._client.publish(
            self._node,
            topic,
            payload,
            headers=headers,
            confirm=confirm,
            timeout=_CONFIRMED_WITHIN,
            retain=packet.retain,
        )

    async def _one(self, packet: Publish) -> Problem | None:
        try:
            event = self._event(packet)
            with self._client.calling():
                await self._put(event, packet, confirm=packet.qos > 0)
        except Problem as problem:
            return problem
        except IrisError as error:
            return problem_of(error)
        return None

    async def _confirmed(self, packets: Sequence[Publish]) -> list[Problem | None]:
        """Publish messages of QoS 1 together."""
        if len(packets) < 2:
            return [await self._one(packet) for packet in packets]
        results: list[Problem | None] = [None] * len(packets)
        accepted: list[int] = []
        events: iris.aio.ConfirmedEvents | None = None
        try:
            with self._client.calling():
                async with self._node.confirming(timeout=_CONFIRMED_WITHIN) as events:
                    for number, packet in enumerate(packets):
                        try:
                            topic, payload, headers = self._event(packet)
                            await events.publish(topic, payload, headers=headers)
                            accepted.append(number)
                        except Problem as problem:
                            results[number] = problem
                        except IrisError as error:
                            results[number] = problem_of(error)
        except Problem as problem:
            return [problem] * len(packets)
        except IrisError as error:
            assert events is not None
            for number in accepted[events.confirmed :]:
                results[number] = problem_of(error)
        return results

    def _event(self, packet: Publish) -> _Event:
        topic = topic_of(packet.topic)
        self._client.check("publish", topic)
        headers = {**headers_of(packet, self._client), **property_headers(packet)}
        return _Event(topic, payload_of(packet), headers)
