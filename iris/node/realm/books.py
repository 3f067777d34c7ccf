"""Books survey: what became of all that the nodes of the realm have sent.

::

    survey = BooksSurvey(node)
    view = await survey.collect("orders.>")
    for sender, row in view.rows:
        print(sender, row.name, row.receiver, row.sent, row.received, row.lost)

Needs the right that ``iris.node.report`` names.  A node reports the 128 rows with the most that was not received;
what it leaves out is counted in ``omitted``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, final

from msgspec import Struct

from iris.kernel.names import NodeId
from iris.node.node import Node
from iris.node.operators import ask_books
from iris.node.realm.checks import fault_of_books
from iris.node.realm.questions import Questions
from iris.node.report import BooksOrder, BooksReport
from iris.patterns.books import BookRow, Loss, compare_losses

_REMEMBERED: Final = 1024
"""Rows of a node that are remembered.  Some may be missing in an answer, and come again in a later one: a node that is
slow reports none, one that has many reports 128."""

_Key = tuple[str, str, NodeId | None]


@final
class BooksView(Struct, frozen=True, kw_only=True):
    """The books of the realm as one survey found them."""

    rows: tuple[tuple[NodeId, BookRow], ...]
    """The sender, and one row of its books; by pattern, name, sender and receiver."""
    silent: dict[NodeId, str]
    """Nodes that did not answer, and why."""
    omitted: int
    """Rows that nodes left out."""


@final
class BooksSurvey:
    """Asks every other node of this node's site, again and again.

    Args:
        node: the node that asks.
        pattern: pattern of topics and clusters; see ``Node.books``.
        settle: seconds for which each node waits for its receivers, up to 10.
        timeout: seconds that a node has to answer beyond these.
    """

    def __init__(self, node: Node, pattern: str = ">", *, settle: float = 2.0, timeout: float = 2.0) -> None:
        self._node = node
        order = BooksOrder(pattern=pattern, settle=settle)
        self._known: dict[NodeId, dict[_Key, Mapping[str, int]]] | None = None
        self._asking: Questions[BooksReport] = Questions(node, partial(ask_books, node, order), settle + timeout)

    async def collect(self) -> BooksView:
        """Ask every node; ends within ``settle + timeout`` for each sixteen of them that do not answer."""
        answers, silent, _ = await self._asking.collect()
        rows: list[tuple[NodeId, BookRow]] = []
        omitted = 0
        for node, (_, report) in answers.items():
            fault = fault_of_books(report)
            if fault is not None:
                self._node._mesh.refusals["report of a node that cannot be"] += 1
                silent[node] = f"its report is refused: {fault}"
                continue
            rows += ((node, row) for row in report.rows)
            omitted += report.omitted
        rows.sort(key=lambda of: (of[1].pattern, of[1].name, of[0], of[1].receiver or ""))
        return BooksView(rows=tuple(rows), silent=silent, omitted=omitted)

    async def losses(self) -> list[tuple[NodeId, Loss]]:
        """Ask every node, and return the senders and what they have lost since this was last called; first: nothing.

        Ends as ``collect`` does.  Cancelled, it finds the same the next time.
        """
        view = await self.collect()
        first, known = self._known is None, self._known or {}
        there = {other.node for other in self._node.nodes()}
        self._known = {sender: rows for sender, rows in known.items() if sender in there}
        losses: list[tuple[NodeId, Loss]] = []
        for sender, row in view.rows:
            rows = self._known.setdefault(sender, {})
            key = row.pattern, row.name, row.receiver
            found, after = compare_losses(row, rows.pop(key, {}))
            rows[key] = after
            if len(rows) > _REMEMBERED:
                del rows[next(iter(rows))]
            losses += ((sender, loss) for loss in found)
        return [] if first else losses
