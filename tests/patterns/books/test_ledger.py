"""Both sides of the books as machines: whatever is lost between them, the columns add up to what was sent."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.books import ledger as ledger_module
from iris.patterns.books import receipts as receipts_module
from iris.patterns.books.columns import EVENT, Account, Columns
from iris.patterns.books.ledger import FORMER, SendLedger
from iris.patterns.books.receipts import NAMES, Receipts

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

    def owner_of(self, node: NodeId) -> str:
        return node[:1]

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


@pytest.mark.parametrize("letter", ["a", "\N{GREEK SMALL LETTER ALPHA}", "\N{OCTOPUS}"])
@pytest.mark.parametrize("length", [12, 256])
def test_what_books_count_as_memory_is_what_they_take(letter: str, length: int) -> None:
    names = [letter * (length - 4) + f"{number:04}" for number in range(NAMES)]
    tracemalloc.start()
    try:
        receipts, before = Receipts(Desk(True)), tracemalloc.get_traced_memory()[0]
        for number, name in enumerate(names):
            account = receipts.account(A, EVENT, str(name.encode(), "utf-8"))
            account.arrived = account.received = 10**6 + number
            account.dropped = account.refused = account.expired = 10**7 + number
        reports = [*receipts.report(A, math.inf)]
        del reports
        assert tracemalloc.get_traced_memory()[0] - before <= 1.1 * receipts.memory.total
        ledger, before = SendLedger(Desk(True)), tracemalloc.get_traced_memory()[0]
        for number, name in enumerate(names):
            ledger.row("event", str(name.encode(), "utf-8"), B).posted = 10**6 + number
            ledger.lose("event", name, "link full", B)
            columns = Columns(*(10**6 + number + column for column in range(7)))
            ledger.receive(B, kinds.Received(EVENT, 0, False, columns, (kinds.ReceivedEntry(name, *columns),)))
        assert tracemalloc.get_traced_memory()[0] - before <= 1.1 * ledger.memory.total
    finally:
        tracemalloc.stop()


def test_nodes_of_one_owner_leave_others_room_for_names() -> None:
    """One key as 300 senders with 1,024 long names each, and 300 receivers of as many topics of ours."""
    receipts, ledger = Receipts(Desk(True)), SendLedger(Desk(True))
    names = [f"{number:04}" * 64 for number in range(NAMES)]
    for number in range(300):
        node = NodeId(f"a{number:031x}")
        for name in names:
            receipts.account(node, EVENT, name).arrived += 1
            ledger.row("event", name, node).posted += 1
    assert receipts.memory.total < 0.51 * receipts_module.MAX_BYTES
    assert ledger.memory.total < 0.51 * ledger_module.MAX_BYTES
    for name in names:
        assert receipts.account(B, EVENT, name).name == ledger.row("event", name, B).name == name
    # What has no account of its own is counted all the same.
    last = NodeId(f"a{299:031x}")
    assert [message.total[0] for message in receipts.report(last, math.inf)][-1] == NAMES
    assert sum(row.posted for row in ledger.rows(lambda _: True) if row.node == last) == NAMES


def test_nodes_that_come_and_go_take_room_from_their_owner_only() -> None:
    receipts, ledger = Receipts(Desk(True)), SendLedger(Desk(True))
    receipts.account(B, EVENT, "x").arrived += 1
    receipts.sender_gone(B)
    ledger.row("event", "x", B).posted += 1
    ledger.receiver_gone(B)
    names = [f"{number:04}" * 64 for number in range(100)]
    for number in range(FORMER + 500):
        node = NodeId(f"a{number:031x}")
        for name in names:
            assert receipts.account(node, EVENT, name).name == name, "in the place of one that is gone"
        receipts.sender_gone(node)
        ledger.row("event", "x", node).posted += 1
        ledger.receiver_gone(node)
    assert receipts.memory.total < 0.51 * receipts_module.MAX_BYTES
    receipts.sender_back(B)
    assert [message.total[0] for message in receipts.report(B, math.inf)] == [1], "it goes on with what it had"
    assert [row.posted for row in ledger.rows(lambda _: True) if row.node == B] == [1]
