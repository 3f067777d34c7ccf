"""Round of questions: asks every other node of the site the same, several at a time.

Without ``background`` a round ends when all have answered or their time is over.  With it, it ends after ``patience``
at the latest: who has not answered by then is late, and its answer counts in the round in which it comes.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar, final

import trio

from iris.kernel.errors import IrisError
from iris.kernel.names import NodeId
from iris.node.node import Node

T = TypeVar("T")

_AT_ONCE: Final = 16
"""Nodes that are asked at one time: their answers are of up to 256 KiB each."""


@final
class Questions(Generic[T]):
    """The rounds of one survey.

    Args:
        node: the node that asks.
        question: asks one node, within so many seconds.
        timeout: seconds for one question.
        background: nursery in which questions go on behind the end of a round.
        patience: seconds that a round takes at most, with ``background``.
    """

    def __init__(
        self,
        node: Node,
        question: Callable[[NodeId, float], Awaitable[T]],
        timeout: float,
        background: trio.Nursery | None = None,
        patience: float = math.inf,
    ) -> None:
        self._node = node
        self._question = question
        self._timeout = timeout
        self._background = background
        self._patience = patience
        self._places = trio.CapacityLimiter(_AT_ONCE)
        self._asked: dict[NodeId, float] = {}
        """Nodes that have not answered yet, and the time since when; trio's clock."""
        self._answers: dict[NodeId, tuple[float, T]] = {}
        self._failures: dict[NodeId, str] = {}
        self._slow: set[NodeId] = set()
        """Nodes that were late in the round before: they are asked behind the others, and take no place from them."""
        self._news = trio.lowlevel.ParkingLot()

    def forget(self) -> None:
        """Begin anew: what has come since the round before is not reported."""
        self._answers, self._failures = {}, {}

    async def collect(self) -> tuple[dict[NodeId, tuple[float, T]], dict[NodeId, str], dict[NodeId, float]]:
        """Return what has come, each with trio's time; who has failed, with the reason; who is late, with seconds.

        A node that has failed, and is asked again, is not late yet.
        """
        if self._background is None:
            async with trio.open_nursery() as nursery:
                self._begin(nursery)
        else:
            self._begin(self._background)
            with trio.move_on_after(self._patience):
                while self._asked:
                    await self._news.park()
        answers, failures = self._answers, self._failures
        self._answers, self._failures = {}, {}
        self._slow = set(self._asked)
        now = trio.current_time()
        late = {
            node: now - since for node, since in self._asked.items() if node not in answers and node not in failures
        }
        return answers, {node: why for node, why in failures.items() if node not in answers}, late

    def _begin(self, nursery: trio.Nursery) -> None:
        for node in sorted(self._node.nodes(), key=lambda other: other.node in self._slow):
            if node.node not in self._asked:
                self._asked[node.node] = trio.current_time()
                nursery.start_soon(self._ask, node.node)

    async def _ask(self, node: NodeId) -> None:
        try:
            async with self._places:
                answer = await self._question(node, self._timeout)
            self._answers[node] = trio.current_time(), answer
        except IrisError as error:
            self._failures[node] = str(error)
        finally:
            del self._asked[node]
            self._news.unpark_all()
