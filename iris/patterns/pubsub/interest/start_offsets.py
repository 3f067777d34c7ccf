"""Start offset: the event of a topic from which on a subscription is owed all events.

Events that are lost between the start offset and the first event that arrives count as missed.

The numbers of a topic continue from the number of events that its publisher had published in all when the topic began.
A publisher forgets topics on which it has not published for long.  Such a topic begins anew, with higher numbers.

Two numbers of the publisher are compared.  With each confirmation of interest the publisher sends how many events it
had published in all.  With the events of a topic it sends the topic's *milestones*: how many it had published in all
when the topic began, and when receivers last joined the topic, with the topic's last number then.  An event that
follows a milestone later than the confirmation was published for the subscription, whether it arrived or not.

The count of missed events is never too high: where a milestone is gone, counting begins with the first event that
arrives.

While a publisher waits for confirmations on the topic, a last milestone names the first event that it may still send
again.  An event missing below that one, or anywhere if there is no such milestone, does not arrive any more.

Behind it may stand ranges of events that were *withdrawn*: they were not confirmed in time, and their publisher got
that error.  A durable subscriber that does not have them has lost nothing that anybody counts on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, final

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId

Milestones = tuple[int, ...]
"""Events published in all when the topic began; then perhaps, for a later moment, the same and the topic's last number;
then perhaps the number of the first event that is not confirmed yet; then perhaps, for each range of events that were
withdrawn, its first and its last number.  Empty: not sent."""

MAX_WITHDRAWN: Final = 16
"""Ranges of events that were withdrawn; when there are more, the oldest are counted as missing."""

_CONFIRMATIONS: Final = 64
"""Confirmations remembered of one publisher; when there are more, every other one is forgotten."""

_PUBLISHERS: Final = 32_768
"""Publishers of which confirmations are remembered, also when they are cut off; the oldest go first."""


def milestones_untrusted(numbers: Milestones, sequence: int) -> None:
    """Read the milestones of the event ``sequence``; raise RemoteProtocolError if they do not fit it."""
    if len(numbers) == 2:
        raise RemoteProtocolError("milestones are none, one number, three, four or more in pairs")
    if numbers and (numbers[0] >= sequence or (len(numbers) > 1 and numbers[2] >= sequence)):
        raise RemoteProtocolError("a milestone lies before the events that follow it")
    if len(numbers) > 3 and not numbers[0] < numbers[3] <= sequence:
        raise RemoteProtocolError("the first event that is not confirmed is none that follows")
    if len(numbers) % 2 and len(numbers) > 3:
        raise RemoteProtocolError("what was withdrawn has a first and a last number")


def withdrawn_of(numbers: Milestones) -> Iterable[tuple[int, int]]:
    """Return the ranges of events that were withdrawn: the first and the last number of each."""
    return zip(numbers[4::2], numbers[5::2], strict=True)


def owed_from(milestones: Milestones, published: int | None, first: int) -> int:
    """Return the number of the first event of a topic that a subscription is owed.

    Args:
        milestones: milestones of the topic.
        published: events that its publisher had published when it knew of the subscription; None if it never sent that.
        first: number of the first event that arrived.
    """
    if published is not None:
        if milestones and milestones[0] >= published:
            return milestones[0] + 1
        if len(milestones) > 1 and milestones[1] >= published:
            return milestones[2] + 1
    return first


@final
class StartOffsets:
    """Confirmations of publishers: the version of this node's interest that they had, and their event count then."""

    def __init__(self) -> None:
        self._publishers: OrderedDict[NodeId, tuple[list[int], list[int]]] = OrderedDict()

    def confirmed(self, node: NodeId, version: int, published: int) -> None:
        """Note that a publisher knows a version of the interest, and how many events it has published."""
        known = self._publishers.get(node)
        if known is None:
            if len(self._publishers) >= _PUBLISHERS:
                self._publishers.popitem(last=False)
            known = self._publishers[node] = ([], [])
        versions, counts = known
        if versions and version <= versions[-1]:
            return  # sent again, after a reset
        if counts and counts[-1] == published:
            versions[-1] = version
            return
        if len(versions) >= _CONFIRMATIONS:
            del versions[::2], counts[::2]
        versions.append(version)
        counts.append(published)

    def published(self, node: NodeId, version: int) -> int | None:
        """Return how many events a publisher had published when it knew of a version, or a little later."""
        known = self._publishers.get(node)
        if known is None:
            return None
        at = bisect_left(known[0], version)
        return known[1][at] if at < len(known[1]) else None
