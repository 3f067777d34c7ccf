"""Echo: a question to all nodes over the links that stand, each asked once and answering for those that it has asked.

Propagation of information with feedback (Segall, 1983).  Who is asked first by a node asks all its other neighbours,
waits for each, and answers with those that were reached and those among them that are interested.  Who was asked
already answers with nobody.  A neighbour whose link ends, or that is silent until the time is over, has answered with
nobody; each hop has less time than the one before, so that a silent node costs its neighbours' answers nothing.

An answer is believed as its sender is: a node that lies can claim to have reached others.  What is kept is counted for
the neighbour that has sent it, so that one with too much loses its own answers and nobody else's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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

_ID: Final = 16
_MOST: Final = 48 * 1024
"""Bytes of nodes in one answer; more are left out."""

_KEPT: Final = 1024 * 1024
"""Bytes that are kept for one neighbour, of its questions and its answers.  Questions beyond are answered with nobody,
and answers beyond have named nobody."""

_QUESTION: Final = 512
"""Bytes of a question for as long as it is remembered."""

_EACH: Final = 128
"""Bytes besides for each neighbour that it is passed on to, until it is answered."""


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
        wanted: whether this node is interested.
        waiting: neighbours that have not answered.
        asked: number of neighbours that were asked.
        answers: what each neighbour has answered: ids of the nodes that were reached, and of those that are interested.
        deadline: time until which answers are waited for.
        done: True once none are.
    """

    __slots__ = ("answers", "asked", "deadline", "done", "key", "parent", "waiting", "wanted")

    def __init__(
        self, key: Key, parent: NodeId | None, waiting: Collection[NodeId], deadline: float, *, wanted: bool = False
    ) -> None:
        self.key = key
        self.parent = parent
        self.wanted = wanted
        self.waiting = dict.fromkeys(waiting)
        self.asked = len(self.waiting)
        self.answers: dict[NodeId, tuple[bytes, bytes]] = {}
        self.deadline = deadline
        self.done = False

    @property
    def reached(self) -> set[NodeId]:
        """The nodes that were reached."""
        return {node for reached, _ in self.answers.values() for node in _ids_of(reached)}

    @property
    def interested(self) -> set[tuple[NodeId, NodeId]]:
        """Those of them that are interested, each with the neighbour that has named it."""
        return {(node, by) for by, (_, interested) in self.answers.items() for node in _ids_of(interested)}


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
        self._kept: Counter[NodeId] = Counter()

    def __repr__(self) -> str:
        return f"<Echo: {self.in_progress} in progress, {self._kept.total()} bytes>"

    def __len__(self) -> int:
        """Return how many questions have come of late: while there is one, ``expire`` is to be called now and then."""
        return len(self._waves)

    @property
    def in_progress(self) -> int:
        """Number of questions for whose answers this node waits."""
        return sum(not wave.done for wave in self._waves.values())

    @property
    def kept(self) -> Mapping[NodeId, int]:
        """Bytes that are kept, by the neighbours that have sent them."""
        return self._kept

    def knows(self, key: Key) -> bool:
        """Return whether a question has come of late: it is not asked on again."""
        return key in self._waves

    def begin(self, neighbours: Collection[NodeId], left: float, now: float) -> tuple[Wave, list[Effect]]:
        """Ask; return the question, which will be done."""
        self._number += 1
        wave = Wave((self._own, self._number), None, neighbours, now + left * _SHRINK)
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
        asked = neighbours if left * _SHRINK >= _LEAST else ()
        if key[0] == self._own or key in self._waves or not self._keep(sender, _QUESTION + _EACH * len(asked)):
            return [Answer(sender, key, b"", b"")]
        return self._ask(Wave(key, sender, asked, now + left * _SHRINK, wanted=interested), left)

    def _ask(self, wave: Wave, left: float) -> list[Effect]:
        self._waves[wave.key] = wave
        return [Ask(node, wave.key, left * _SHRINK) for node in wave.waiting] or self._finish(wave)

    def receive_answer_untrusted(self, key: Key, sender: NodeId, reached: bytes, interested: bytes) -> list[Effect]:
        """Receive an answer.

        Raises:
            RemoteProtocolError: it is malformed, or names more that are interested than were reached: these would take
                the room of others, who were reached and then seem not to be interested.
        """
        if len(reached) % _ID or len(interested) % _ID or len(interested) > len(reached):
            raise RemoteProtocolError("an answer to an announcement has node ids, and no more interested than reached")
        wave = self._waves.get(key)
        if wave is None or sender not in wave.waiting:
            return []  # too late
        if reached and self._keep(sender, len(reached) + len(interested)):
            wave.answers[sender] = reached, interested
        return self._answered(wave, sender)

    def _keep(self, neighbour: NodeId | None, size: int) -> bool:
        """Count bytes that are kept for a neighbour, or no more; return False if it has too many."""
        if neighbour is None:
            return True  # this node's own
        kept = self._kept[neighbour] + size
        if kept > _KEPT:
            return False
        self._kept[neighbour] = kept
        if not kept:
            del self._kept[neighbour]
        return True

    def _answered(self, wave: Wave, node: NodeId) -> list[Effect]:
        wave.waiting.pop(node, None)
        return [] if wave.waiting else self._finish(wave)

    def _finish(self, wave: Wave) -> list[Effect]:
        wave.done = True
        wave.waiting.clear()
        if wave.parent is None:
            return []
        own = bytes.fromhex(self._own)
        reached = b"".join((own, *(reached for reached, _ in wave.answers.values())))
        wanted = own if wave.wanted else b""
        interested = b"".join((wanted, *(interested for _, interested in wave.answers.values())))
        self._keep(wave.parent, -_EACH * wave.asked)
        self._drop_answers(wave)
        return [Answer(wave.parent, wave.key, reached[:_MOST], interested[:_MOST])]

    def _drop_answers(self, wave: Wave) -> None:
        for node, (reached, interested) in wave.answers.items():
            self._keep(node, -len(reached) - len(interested))
        wave.answers.clear()

    def link_ended(self, node: NodeId) -> list[Effect]:
        """Wait no longer for a neighbour."""
        waves = [wave for wave in self._waves.values() if node in wave.waiting]
        return [effect for wave in waves for effect in self._answered(wave, node)]

    def expire(self, now: float) -> list[Effect]:
        """Wait no longer for those whose time is over."""
        waves = [wave for wave in self._waves.values() if not wave.done and wave.deadline <= now]
        effects = [effect for wave in waves for effect in self._finish(wave)]
        for wave in [wave for wave in self._waves.values() if wave.done and wave.deadline + _REMEMBERED <= now]:
            del self._waves[wave.key]
            self._drop_answers(wave)
            self._keep(wave.parent, -_QUESTION)
        return effects


def _ids_of(packed: bytes) -> set[NodeId]:
    """Return the nodes whose ids stand one after the other."""
    text = packed.hex()
    return {NodeId(text[begin : begin + 2 * _ID]) for begin in range(0, len(text), 2 * _ID)}
