"""Interest: what a node tells of its own, and what it knows of the others'."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel import kinds
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.kernel.wire import BatchDecoder, Message, encode_batch
from iris.patterns import interest
from iris.patterns.interest import InterestTable, OwnInterest, Terms

NODE, OTHER = NodeId("a" * 32), NodeId("b" * 32)
A = Terms("a.*", None, False)
B = Terms("a.*", "workers", False)
C = Terms("a.>", None, True)

patterns = st.sampled_from(["a", "a.b", "*", "a.*", ">", "a.>"])
any_terms = st.one_of(
    st.builds(Terms, patterns, st.sampled_from([None, "g", "h"]), st.booleans(), st.booleans(), st.just(())),
    st.builds(
        Terms, patterns, st.just("g"), st.just(True), st.booleans(), st.sampled_from([(2, 0), (2, 1), (2, 0, 1)])
    ),
)


def over_the_wire(message: Message) -> Message:
    (arrived,) = BatchDecoder().decode_untrusted(bytes(encode_batch([message])))
    return arrived


@given(st.lists(st.tuples(st.booleans(), any_terms), max_size=40), st.data())
def test_whatever_changes_the_other_side_knows_what_is_wanted(
    steps: list[tuple[bool, Terms]], data: st.DataObject
) -> None:
    own, table = OwnInterest(), InterestTable()
    model: Counter[Terms] = Counter()
    for adding, terms in steps:
        if not adding and not model[terms]:
            continue
        model[terms] += 1 if adding else -1
        change = own.add(terms) if adding else own.remove(terms)
        assert (change is None) == (model[terms] > (1 if adding else 0))
        if change is not None and data.draw(st.integers(0, 4)):
            assert table.receive_untrusted(NODE, over_the_wire(change)) == own.version
        else:  # it is lost, or somebody else has just come: everything is told
            versions = [table.receive_untrusted(NODE, over_the_wire(message)) for message in own.whole()]
            assert versions[-1] == own.version
        wanted = +model
        assert len(own) == len(wanted)
        assert {found.terms for found in table.match("a.b")} == {
            known for known in wanted if known.pattern in ("a.b", "a.*", ">", "a.>")
        }
    table.forget(NODE)
    assert table.match("a.b") == ()


def test_only_the_first_and_the_last_subscription_are_told() -> None:
    own = OwnInterest()
    assert own.add(A) == (kinds.INTEREST, 1, False, (tuple(A),), ())
    assert own.add(A) is None
    assert own.remove(A) is None
    assert own.remove(A) == (kinds.INTEREST, 2, False, (), (tuple(A),))


def test_nodes_and_terms_are_kept_apart() -> None:
    table = InterestTable()
    table.receive_untrusted(NODE, (kinds.INTEREST, 1, True, (A, B), ()))
    table.receive_untrusted(OTHER, (kinds.INTEREST, 7, True, (C,), ()))
    assert {(wanted.node, wanted.terms) for wanted in table.match("a.b")} == {(NODE, A), (NODE, B), (OTHER, C)}
    table.forget(NODE)
    table.forget(NODE)
    assert [wanted.node for wanted in table.match("a.b")] == [OTHER]


def test_repeats_change_nothing() -> None:
    table = InterestTable()
    message = (kinds.INTEREST, 1, False, (A, A), ())
    table.receive_untrusted(NODE, message)
    table.receive_untrusted(NODE, message)
    assert len(table.match("a.b")) == 1
    table.receive_untrusted(NODE, (kinds.INTEREST, 2, False, (), (A, A, B)))
    assert table.match("a.b") == ()


def test_the_version_is_confirmed_by_the_last_of_many_messages() -> None:
    """Otherwise a subscriber would believe that a new node knows all, when it knows a part."""
    own, table = OwnInterest(), InterestTable()
    for number in range(1000):
        own.add(Terms(f"topic.{number}", None, False))
    messages = list(own.whole())
    assert [message[1] for message in messages] == [0, 0, 0, 1000]
    assert [message[2] for message in messages] == [True, False, False, False]
    assert [table.receive_untrusted(NODE, over_the_wire(message)) for message in messages] == [0, 0, 0, 1000]
    assert all(table.match(f"topic.{number}") for number in range(1000))


def test_nothing_is_forgotten_while_everything_is_told_anew() -> None:
    """Events that are published meanwhile still find their subscribers."""
    own, table = OwnInterest(), InterestTable()
    for number in range(1000):
        own.add(Terms(f"topic.{number}", None, False))
    for message in own.whole():
        table.receive_untrusted(NODE, message)
    for number in range(0, 1000, 2):
        own.remove(Terms(f"topic.{number}", None, False))  # lost on the way
    messages = list(own.whole())
    assert len(messages) == 2
    table.receive_untrusted(NODE, messages[0])
    assert all(table.match(f"topic.{number}") for number in range(1000))
    table.receive_untrusted(NODE, messages[1])
    assert [number for number in range(1000) if table.match(f"topic.{number}")] == list(range(1, 1000, 2))
    assert not table._stale


def test_a_node_without_interest_says_so() -> None:
    assert list(OwnInterest().whole()) == [(kinds.INTEREST, 0, True, (), ())]


def test_terms_that_are_not_permitted_get_nothing() -> None:
    table = InterestTable()
    table.receive_untrusted(NODE, (kinds.INTEREST, 1, True, (A, C), ()), lambda pattern: pattern == "a.*")
    assert [wanted.terms for wanted in table.match("a.b")] == [A]
    assert table.refused == 1


def test_the_terms_of_a_node_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "MAX_TERMS", 10)
    table = InterestTable()

    def terms(start: int, count: int) -> tuple[Terms, ...]:
        return tuple(Terms(f"t.{number}", None, False) for number in range(start, start + count))

    table.receive_untrusted(NODE, (kinds.INTEREST, 1, True, terms(0, 10), ()))
    with pytest.raises(RemoteProtocolError, match="more than 10"):
        table.receive_untrusted(NODE, (kinds.INTEREST, 2, False, terms(10, 1), ()))
    assert table.match("t.10") == ()
    assert table.match("t.0")
    table.receive_untrusted(NODE, (kinds.INTEREST, 3, True, terms(20, 10), ()))  # instead of what was, not on top
    assert table.match("t.20")
    assert table.match("t.0") == ()
    table.receive_untrusted(NODE, (kinds.INTEREST, 0, True, terms(30, 10), ()))
    with pytest.raises(RemoteProtocolError, match="more than 10"):  # everything, begun anew and again, and never ended
        table.receive_untrusted(NODE, (kinds.INTEREST, 0, True, terms(40, 10), ()))
    assert len(table.terms_of(NODE)) == 20
    table.receive_untrusted(NODE, (kinds.INTEREST, 4, True, (), ()))
    assert not table.terms_of(NODE)


def test_who_has_publishers_wait_is_known_by_the_pattern_for_as_long_as_it_does() -> None:
    table = InterestTable()
    patient, grouped = Terms("a.*", None, False, True), Terms("a.*", "workers", False, True)
    table.receive_untrusted(NODE, (kinds.INTEREST, 1, True, (A, C, patient, grouped), ()))
    assert table.is_patient(NODE, "a.*")
    assert not any(table.is_patient(*other) for other in [(NODE, "a.>"), (NODE, "a.b"), (OTHER, "a.*")])
    table.receive_untrusted(NODE, (kinds.INTEREST, 2, False, (), (patient,)))
    assert table.is_patient(NODE, "a.*")
    table.receive_untrusted(NODE, (kinds.INTEREST, 3, True, (A, C), ()))
    assert not table.is_patient(NODE, "a.*")
    table.receive_untrusted(NODE, (kinds.INTEREST, 4, False, (patient,), ()))
    table.narrow(NODE, lambda pattern: pattern == "a.>")
    assert not table.is_patient(NODE, "a.*")
    table.receive_untrusted(NODE, (kinds.INTEREST, 5, False, (patient,), ()))
    table.forget(NODE)
    assert not table._patient


@pytest.mark.parametrize(
    "fields",
    [
        ("1", False, (), ()),
        (1, 0, (), ()),
        (1, False, None, ()),
        (1, False, (), "a"),
        (1, False, ("a",), ()),
        (1, False, (("a",),), ()),
        (1, False, (("a", None),), ()),
        (1, False, (("a", None, False, False),), ()),
        (1, False, (("a", None, 0, False, ()),), ()),
        (1, False, (("a", None, False, 1, ()),), ()),
        (1, False, (("a..b", None, False, False, ()),), ()),
        (1, False, (("x" * 300, None, False, False, ()),), ()),
        (1, False, (("a", "no group", False, False, ()),), ()),
        (1, False, (("a", 1, False, False, ()),), ()),
        (1, False, ((b"a", None, False, False, ()),), ()),
        (1, False, (), (("a", "", False, False, ()),)),
        (1, False, (("a", "g", True, False, None),), ()),
        (1, False, (("a", "g", True, False, (2, 2)),), ()),
        (1, False, (("a", "g", False, False, (2, 1)),), ()),
        (1, False, (("a", None, True, False, (2, 1)),), ()),
        (True, False, (), ()),
    ],
)
def test_malformed_interest_changes_nothing(fields: tuple[object, ...]) -> None:
    table = InterestTable()
    table.receive_untrusted(NODE, (kinds.INTEREST, 1, True, (A,), ()))
    version = table.version
    with pytest.raises(RemoteProtocolError):
        table.receive_untrusted(NODE, (kinds.INTEREST, *fields))
    assert (table.version, [wanted.terms for wanted in table.match("a.b")]) == (version, [A])
