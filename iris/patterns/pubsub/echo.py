"""Echo: a question to all nodes over the links that stand, each asked once and answering for those that it has asked.

Propagation of information with feedback (Segall, 1983).  Who is asked first by a node asks all its other neighbours,
waits for each, and answers with those that were reached and those among them that are interested.  Who was asked
already answers with nobody.  A neighbour whose link ends, or that is silent until the time is over, has answered with
nobody; each hop has less time than the one before, so that a silent node costs its neighbours' answers nothing.

An answer is believed as its sender is: a node that lies can claim to have reached others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple, final

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId

Key = tuple[NodeId, int]
"""Node that asks, and the number of its question."""

_SHRINK: Final = 0.75
"""Share of the time that the next hop has."""

_LEAST: Final = 0.1
"""Seconds below which nobody else is asked."""

_REMEMBERED: Final = 5.0
"""Seconds for which it is known that a question came: one that is late begins nothing anew."""

_WAVES: Final = 1024
"""Questions in progress that one neighbour has asked; more are answered with nobody."""

_ID: Final = 16
_NODES: Final = 48 * 1024 // _ID
"""Nodes in one answer; more are left out."""

_HELD: Final = 8 * 1024 * 1024
"""Bytes of unfinished answers; of those beyond that nobody is noted."""


class Ask(NamedTuple):
    """Question to a neighbour, which has so many seconds."""

    node: NodeId
    key: Key
    left: float


class Answer(NamedTuple):
    """Answer to a neighbour: ids of those who were reached, and of those who are interested, one after the other."""

    node: NodeId
    key: Key
    reached: bytes
    interested: bytes


Effect = Ask | Answer


@final
class Wave:
    """A question in progress.

    Attributes:
        key: who asks.
        parent: neighbour that is to be answered.  None: this node asks.
        waiting: neighbours that have not answered.
        reached: ids of the nodes that were reached.
        interested: ids of those among them that are interested.
        deadline: time until which answers are waited for.
        done: True once none are.
    """

    __slots__ = ("deadline", "done", "interested", "key", "parent", "reached", "waiting")

    def __init__(self, key: Key, parent: NodeId | None, waiting: Collection[NodeId], deadline: float) -> None:
        self.key = key
        self.parent = parent
        self.waiting = dict.fromkeys(waiting)
        self.reached = bytearray()
        self.interested = bytearray()
        self.deadline = deadline
        self.done = False


@final
class Echo:
    """The questions that come by one node.

    Args:
        own: the node.
    """

    def __init__(self, own: NodeId) -> None:
        self._own = own
        self._number = 0
        self._waves: dict[Key, Wave] = {}
        """Those that were asked of late, done or not."""
        self._open: dict[Key, Wave] = {}
        self._asked: Counter[NodeId] = Counter()
        """Questions in progress, by the neighbour that asked."""
        self._held = 0

    def __repr__(self) -> str:
        return f"<Echo: {len(self._open)} in progress, {self._held} bytes>"

    def __len__(self) -> int:
        """Return how many questions have come of late: while there is one, ``expire`` is to be called now and then."""
        return len(self._waves)

    def knows(self, key: Key) -> bool:
        """Return whether a question has come of late: it is not asked on again."""
        return key in self._waves

    def begin(self, neighbours: Collection[NodeId], left: float, now: float) -> tuple[Wave, list[Effect]]:
        """Ask; return the question, which will be done."""
        self._number += 1
        wave = self._start((self._own, self._number), None, neighbours, left, now)
        return wave, self._ask(wave, left)

    def receive(
        self, key: Key, sender: NodeId, neighbours: Collection[NodeId], left: float, now: float, *, interested: bool
    ) -> list[Effect]:
        """Receive a question.

        Args:
            key: the question.
            sender: neighbour that has sent it.
            neighbours: all others.
            left: seconds that the sender waits.
            now: this moment.
            interested: this node is.
        """
        if key[0] == self._own or key in self._waves or self._asked[sender] >= _WAVES:
            return [Answer(sender, key, b"", b"")]
        self._asked[sender] += 1
        wave = self._start(key, sender, neighbours if left * _SHRINK >= _LEAST else (), left, now)
        own = bytes.fromhex(self._own)
        self._hold(wave, own, own if interested else b"")
        return self._ask(wave, left)

    def _start(self, key: Key, parent: NodeId | None, neighbours: Collection[NodeId], left: float, now: float) -> Wave:
        wave = self._waves[key] = self._open[key] = Wave(key, parent, neighbours, now + left * _SHRINK)
        return wave

    def _ask(self, wave: Wave, left: float) -> list[Effect]:
        return [Ask(node, wave.key, left * _SHRINK) for node in wave.waiting] or self._finish(wave)

    def receive_answer_untrusted(self, key: Key, sender: NodeId, reached: bytes, interested: bytes) -> list[Effect]:
        """Receive an answer.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        if len(reached) % _ID or len(interested) % _ID:
            raise RemoteProtocolError("an answer to an announcement has node ids")
        wave = self._open.get(key)
        if wave is None or sender not in wave.waiting:
            return []  # too late
        self._hold(wave, reached, interested)
        return self._answered(wave, sender)

    def _hold(self, wave: Wave, reached: bytes, interested: bytes) -> None:
        size = len(reached) + len(interested)
        if self._held + size <= _HELD:
            self._held += size
            wave.reached += reached
            wave.interested += interested

    def _answered(self, wave: Wave, node: NodeId) -> list[Effect]:
        wave.waiting.pop(node, None)
        return [] if wave.waiting else self._finish(wave)

    def _finish(self, wave: Wave) -> list[Effect]:
        wave.done = True
        del self._open[wave.key]
        self._held -= len(wave.reached) + len(wave.interested)
        if wave.parent is None:
            return []
        self._asked[wave.parent] -= 1
        if not self._asked[wave.parent]:
            del self._asked[wave.parent]
        answer = Answer(
            wave.parent, wave.key, bytes(wave.reached[: _NODES * _ID]), bytes(wave.interested[: _NODES * _ID])
        )
        wave.reached, wave.interested = bytearray(), bytearray()
        return [answer]

    def link_ended(self, node: NodeId) -> list[Effect]:
        """Wait no longer for a neighbour."""
        return [
            effect
            for wave in [wave for wave in self._open.values() if node in wave.waiting]
            for effect in self._answered(wave, node)
        ]

    def expire(self, now: float) -> list[Effect]:
        """Wait no longer for those whose time is over."""
        effects = [
            effect
            for wave in [wave for wave in self._open.values() if wave.deadline <= now]
            for effect in self._finish(wave)
        ]
        over = [key for key, wave in self._waves.items() if wave.done and wave.deadline + _REMEMBERED <= now]
        for key in over:
            del self._waves[key]
        return effects


def ids_of(packed: bytes | bytearray) -> set[NodeId]:
    """Return the nodes whose ids stand one after the other."""
    text = packed.hex()
    return {NodeId(text[begin : begin + 2 * _ID]) for begin in range(0, len(text), 2 * _ID)}
