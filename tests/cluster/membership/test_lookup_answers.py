"""Answers to clients: all the members of a cluster, in parts, and not without end."""

from __future__ import annotations

import pytest

from iris.cluster.membership.lookup_answers import LookupAnswers
from iris.cluster.swim import view_hash
from iris.cluster.swim.records import NodeRecord
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.membership import record

CLIENT, OTHER = NodeId("c" * 32), NodeId("d" * 32)
NOTHING = bytes(8)


class Store:
    """Records of the members of ``store``."""

    def __init__(self, count: int) -> None:
        self._members = [record(number) for number in range(1, count + 1)]

    def records_of(self, cluster: str) -> list[NodeRecord]:
        return self._members if cluster == "store" else []


def answers(count: int) -> LookupAnswers:
    """Return what answers of ``store`` with so many members."""
    return LookupAnswers(Store(count))


def ask(desk: LookupAnswers, cluster: str = "store", known: bytes = NOTHING, now: float = 0.0) -> list[kinds.Found]:
    question = kinds.Lookup(7, cluster, known)
    found = [message for message, _ in desk.to_untrusted(CLIENT, question, now, 0.0)]
    assert all(isinstance(message, kinds.Found) and message.sequence == 7 for message in found)
    return [message for message in found if isinstance(message, kinds.Found)]


@pytest.mark.parametrize("count", [1, 2, 500])
def test_an_answer_has_all_members_and_ends_with_its_last_part(count: int) -> None:
    parts = ask(answers(count))
    assert sum(len(part.updates) for part in parts) == count
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(part.changed for part in parts)
    assert (len(parts) > 1) == (count == 500)


def test_nobody_is_an_answer() -> None:
    assert ask(answers(2), "shelf") == [kinds.Found(7, False, True, ())]
    assert ask(answers(2), "shelf", b"x" * 8) == [kinds.Found(7, True, True, ())]


def test_what_the_client_has_is_not_sent_again() -> None:
    known = view_hash([record(2), record(1)])
    assert ask(answers(2), known=known) == [kinds.Found(7, False, True, ())]


def test_a_probe_is_answered_with_how_long_work_waits() -> None:
    found = list(answers(1).to_untrusted(CLIENT, kinds.Probe(3, 0, 1, ()), 0.0, 0.25))
    assert [message for message, _ in found] == [kinds.ProbeAnswer(3, 250_000, ())]


def test_who_asks_without_end_is_answered_at_a_rate_and_others_as_ever() -> None:
    desk = answers(0)
    assert len([ask(desk) for _ in range(128)]) == 128
    with pytest.raises(RemoteProtocolError, match="asks too much"):
        ask(desk)
    assert list(desk.to_untrusted(OTHER, kinds.Lookup(1, "store", NOTHING), 0.0, 0.0))
    assert len([ask(desk, now=1.0) for _ in range(32)]) == 32
    with pytest.raises(RemoteProtocolError):
        ask(desk, now=1.0)
    desk.forget(CLIENT)
    assert ask(desk, now=1.0)


def test_records_cost_more_than_questions() -> None:
    desk = answers(1000)
    ask(desk)
    with pytest.raises(RemoteProtocolError):
        ask(desk, now=1.0)
    assert ask(desk, now=10.0)


def test_a_client_takes_no_part_in_membership() -> None:
    with pytest.raises(RemoteProtocolError, match="takes no part in membership"):
        list(answers(1).to_untrusted(CLIENT, kinds.Gossip(()), 0.0, 0.0))
