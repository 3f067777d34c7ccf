"""The last values that a node keeps for subscribers who come later: one event for each topic, bounded.

Topics are kept in a tree of their tokens, so that what a pattern matches is found without a look at the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, final

from iris.kernel.errors import NotSent
from iris.kernel.wire import Headers, Payload
from iris.patterns.beginnings import Milestones
from iris.patterns.topics import check_topic


class RetainedEvent(NamedTuple):
    """The last value of a topic.

    Attributes:
        sequence: number of the event among those that this node has published on the topic.
        size: bytes on the wire, about.
        milestones: when the topic began.
    """

    topic: str
    sequence: int
    headers: Headers
    key: str | None
    payload: Payload
    size: int
    milestones: Milestones = ()


@final
class _Branch:
    __slots__ = ("children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Branch] = {}
        self.here: RetainedEvent | None = None


@final
class RetainedEvents:
    """The last value of each topic.

    Args:
        max_events: topics that have one.
        max_bytes: of all of them together.
    """

    __slots__ = ("_bytes", "_count", "_max_bytes", "_max_events", "_root")

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events: Final = max_events
        self._max_bytes: Final = max_bytes
        self._root = _Branch()
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        """Return how many topics have a value."""
        return self._count

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return self._bytes

    def get(self, topic: str) -> RetainedEvent | None:
        """Return the value of a topic."""
        branch: _Branch | None = self._root
        for token in topic.split("."):
            branch = None if branch is None else branch.children.get(token)
        return None if branch is None else branch.here

    def check(self, topic: str, size: int) -> None:
        """Tell whether there is room for a value of ``size`` bytes in the place of the present one.

        Raises:
            NotSent: there is not.
        """
        present = self.get(topic)
        events = self._count + (present is None)
        held = self._bytes + size - (0 if present is None else present.size)
        if events > self._max_events or held > self._max_bytes:
            raise NotSent(
                f"the last value of {topic!r} cannot be retained: this node retains {self._count} values with "
                f"{self._bytes} bytes, the limits are {self._max_events} and {self._max_bytes}"
            )

    def keep(self, event: RetainedEvent) -> None:
        """Have this value stand in the place of the present one, room or not."""
        branch = self._root
        for token in event.topic.split("."):
            following = branch.children.get(token)
            if following is None:
                following = branch.children[token] = _Branch()
            branch = following
        if branch.here is None:
            self._count += 1
        else:
            self._bytes -= branch.here.size
        branch.here = event
        self._bytes += event.size

    def forget(self, topic: str) -> bool:
        """Drop the value of a topic; tell whether there was one.

        Raises:
            ConfigError: it is not a topic.
        """
        tokens = check_topic(topic).split(".")
        way = [self._root]
        for token in tokens:
            following = way[-1].children.get(token)
            if following is None:
                return False
            way.append(following)
        event, way[-1].here = way[-1].here, None
        if event is None:
            return False
        self._count -= 1
        self._bytes -= event.size
        for index in range(len(tokens), 0, -1):
            if way[index].children or way[index].here is not None:
                break
            del way[index - 1].children[tokens[index - 1]]
        return True

    def match(self, pattern: str) -> list[RetainedEvent]:
        """Return the values of all topics that a valid pattern matches."""
        return self.search(pattern)[0]

    def search(self, pattern: str) -> tuple[list[RetainedEvent], int]:
        """Return the values of all topics that a valid pattern matches, and how many places were looked at for them."""
        tokens = pattern.split(".")
        rest = tokens[-1] == ">"
        branches = [self._root]
        looks = 1
        for token in tokens[:-1] if rest else tokens:
            looks += len(branches)
            if token == "*":  # noqa: S105 -- a token of a pattern
                branches = [child for branch in branches for child in branch.children.values()]
            else:
                branches = [branch.children[token] for branch in branches if token in branch.children]
        if rest:
            events = [event for branch in branches for child in branch.children.values() for event in _below(child)]
        else:
            events = [branch.here for branch in branches if branch.here is not None]
        return events, looks + len(branches) + len(events)


def _below(branch: _Branch) -> Iterator[RetainedEvent]:
    """Yield the value here and all further down; a topic has at most 32 tokens, so the way is not long."""
    if branch.here is not None:
        yield branch.here
    for child in branch.children.values():
        yield from _below(child)
