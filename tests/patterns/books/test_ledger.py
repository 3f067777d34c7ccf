"""Both sides of the books as machines: whatever is lost between them, the columns add up to what was sent."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.names import NodeId
from iris.patterns.books.columns import EVENT, Account
from iris.patterns.books.ledger import FORMER, SendLedger
from iris.patterns.books.receipts import Receipts

A, B = NodeId("a" * 32), NodeId("b" * 32)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["sent", "lost", "taken", "dropped", "report", "report again", "report lost", "asked"]),
        st.sampled_from(["x", "y", "z"]),
        st.integers(1, 5),
    ),
    max_size=40,
)


class Desk:
    """The node that keeps the books."""

    def __init__(self, linked: bool) -> None:
        self._linked = linked

    def is_linked(self, node: NodeId) -> bool:
        return self._linked

    def report_due(self) -> None:
        pass

    def relayed_due(self) -> float:
        return 0.0


@given(steps=STEPS, linked=st.booleans())
def test_every_message_is_in_one_column_whatever_is_lost(steps: list[tuple[str, str, int]], linked: bool) -> None:
    ledger, receipts = SendLedger(Desk(linked)), Receipts(Desk(linked))
    accounts: dict[str, Account] = {}
    mark = 0
    for what, name, count in steps:
        account = accounts.get(name)
        hand = 0 if account is None else account.columns().arrived - account.columns().settled
        match what:
            case "sent" | "lost":
                ledger.row("event", name, B).posted += count
                if what == "sent":
                    accounts[name] = receipts.account(A, EVENT, name)
                    accounts[name].arrived += count
            case "taken" if account is not None:
                account.received += min(hand, count)
            case "dropped" if account is not None:
                account.dropped += min(hand, count)
            case "report" | "report again":
                for message in receipts.report(A, math.inf):
                    ledger.receive(B, message)
                    if what == "report again":
                        ledger.receive(B, message)
            case "report lost":
                list(receipts.report(A, math.inf))
                receipts.repeat(A)
            case _:
                ledger.row("event", name, B)
                mark += 1
                ledger.ask(B, mark)
                for message in receipts.report(A, math.inf, mark):
                    ledger.receive(B, message)
        for row in ledger.rows(lambda _: True):
            shown = row.shown(is_linked=linked)
            assert shown.difference == 0
            assert min(shown.received, shown.waiting, shown.in_doubt, *shown.lost.values(), 0) == 0
            assert not (shown.waiting if not linked else shown.in_doubt)
    for row in ledger.rows(lambda _: True):
        account = accounts.get(row.name)
        assert row.reported.received <= (0 if account is None else account.received)


def test_receivers_that_are_long_gone_are_added_up() -> None:
    ledger = SendLedger(Desk(False))
    for number in range(FORMER + 10):
        ledger.row("broadcast", "cache", NodeId(f"{number:032x}")).posted += 3
    shown = [row.shown(is_linked=False) for row in ledger.rows(lambda _: True)]
    assert sum(row.in_doubt for row in shown) == sum(row.sent for row in shown) == 3 * (FORMER + 10)
    assert [row.in_doubt for row in shown if row.receiver is None] == [30]
    assert len(shown) == FORMER + 1
