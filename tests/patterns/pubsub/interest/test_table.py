"""Interest: a node's announcements of its own, and its knowledge of the others'."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.kernel.wire.codec import encode_batch
from iris.patterns.pubsub.interest import table as interest
from iris.patterns.pubsub.interest.table import InterestTable, OwnInterest, Terms
from tests.support.messages import arrived, decoded, fields_of

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


def over_the_wire(message: kinds.Interest) -> Any:
    return decoded(encode_batch([message]))[0]


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
        else:  # it is lost, or another node has just come: everything is announced
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
    assert own.add(A) == kinds.Interest(1, False, (A,), ())
    assert own.add(A) is None
    assert own.remove(A) is None
    assert own.remove(A) == kinds.Interest(2, False, (), (A,))


def test_nodes_and_terms_are_kept_apart() -> None:
    table = InterestTable()
    table.receive_untrusted(NODE, kinds.Interest(1, True, (A, B), ()))
    table.receive_untrusted(OTHER, kinds.Interest(7, True, (C,), ()))
    assert {(wanted.node, wanted.terms) for wanted in table.match("a.b")} == {(NODE, A), (NODE, B), (OTHER, C)}
    table.forget(NODE)
    table.forget(NODE)
    assert [wanted.node for wanted in table.match("a.b")] == [OTHER]


def test_repeats_change_nothing() -> None:
    table = InterestTable()
    message = kinds.Interest(1, False, (A, A), ())
    table.receive_untrusted(NODE, message)
    table.receive_untrusted(NODE, message)
    assert len(table.match("a.b")) == 1
    table.receive_untrusted(NODE, kinds.Interest(2, False, (), (A, A, B)))
    assert table.match("a.b") == ()


def test_the_version_is_confirmed_by_the_last_of_many_messages() -> None:
    """Otherwise a subscriber would believe that a new node knows all, when it knows a part."""
    own, table = OwnInterest(), InterestTable()
    for number in range(1000):
        own.add(Terms(f"topic.{number}", None, False))
    messages = list(own.whole())
    assert [fields_of(message)[0] for message in messages] == [0, 0, 0, 1000]
    assert [fields_of(message)[1] for message in messages] == [True, False, False, False]
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
        own.remove(Terms(f"topic.{number}", None, False))  # lost in flight
    messages = list(own.whole())
    assert len(messages) == 2
    table.receive_untrusted(NODE, messages[0])
    assert all(table.match(f"topic.{number}") for number in range(1000))
    table.receive_untrusted(NODE, messages[1])
    assert [number for number in range(1000) if table.match(f"topic.{number}")] == list(range(1, 1000, 2))
    assert table._known[NODE].repeated is None


def test_a_node_without_interest_says_so() -> None:
    assert list(OwnInterest().whole()) == [kinds.Interest(0, True, (), ())]


def test_terms_that_are_not_permitted_get_nothing() -> None:
    table = InterestTable()
    table.receive_untrusted(NODE, kinds.Interest(1, True, (A, C), ()), lambda pattern: pattern == "a.*")
    assert [wanted.terms for wanted in table.match("a.b")] == [A]
    assert table.refused == 1


# -- what one node may have --------------------------------------------------------------------------------


def plain(pattern: str) -> Terms:
    return Terms(pattern, None, False)


def numbered(start: int, count: int) -> tuple[Terms, ...]:
    return tuple(plain(f"t.{number}") for number in range(start, start + count))


EACH = plain("t.00").size
"""Size of each of the numbered terms."""


def held(table: InterestTable) -> int:
    return sum(terms.size for terms in table.terms_of(NODE))


def test_the_terms_of_a_node_are_bounded_by_the_memory_that_they_take() -> None:
    table = InterestTable(10 * EACH)
    table.receive_untrusted(NODE, kinds.Interest(1, True, numbered(10, 10), ()))
    with pytest.raises(RemoteProtocolError, match=f"patterns that take more than {10 * EACH} bytes"):
        table.receive_untrusted(NODE, kinds.Interest(2, False, numbered(20, 1), ()))
    assert table.match("t.20") == ()
    assert table.match("t.10")
    table.receive_untrusted(NODE, kinds.Interest(2, False, numbered(10, 10), ()))  # they are known
    table.receive_untrusted(NODE, kinds.Interest(3, True, numbered(20, 10), ()))  # instead of what was, not on top
    assert table.match("t.20")
    assert table.match("t.10") == ()
    table.receive_untrusted(NODE, kinds.Interest(0, True, numbered(30, 10), ()))
    with pytest.raises(RemoteProtocolError, match="more than"):  # everything, begun anew and again, and never ended
        table.receive_untrusted(NODE, kinds.Interest(0, True, numbered(40, 10), ()))
    assert len(table.terms_of(NODE)) == 20
    table.receive_untrusted(NODE, kinds.Interest(4, True, (), ()))
    assert not table.terms_of(NODE)
    table.receive_untrusted(OTHER, kinds.Interest(1, True, numbered(10, 10), ()))  # each has its own


def test_longer_terms_take_more() -> None:
    assert plain("x" * 200).size > plain("x").size + 190
    assert plain("日" * 80).size > plain("x" * 80).size + 80
    assert Terms("a", "g" * 100, False).size > plain("a").size + 100
    assert Terms("a", "g", True, False, (512, *range(512))).size > plain("a").size + 512 * 20


def test_a_node_of_another_realm_has_a_part_of_that() -> None:
    table = InterestTable(16 * EACH)
    table.receive_untrusted(NODE, kinds.Interest(1, True, numbered(10, 2), ()), realm_id="f0")
    with pytest.raises(RemoteProtocolError, match="more than"):
        table.receive_untrusted(NODE, kinds.Interest(2, False, numbered(20, 1), ()), realm_id="f0")


def test_patterns_over_a_star_and_a_token_cannot_make_a_match_dear() -> None:
    """All of them match one topic, and the number of prefixes doubles with every token."""
    table = InterestTable()
    patterns = [".".join(tokens) for tokens in itertools.product("*a", repeat=12)]
    table.receive_untrusted(NODE, kinds.Interest(1, False, tuple(map(plain, patterns[:64])), ()))
    with pytest.raises(RemoteProtocolError, match="their wildcards at more than 64 different places"):
        table.receive_untrusted(NODE, kinds.Interest(2, False, (plain(patterns[64]),), ()))
    assert len(table.match(".".join("a" * 12))) == len(table._matcher.shapes) == 64


def test_any_number_of_patterns_of_few_shapes_is_taken() -> None:
    table = InterestTable()
    for number in range(0, 20_000, 500):
        more = tuple(plain(f"orders.{one}.*") for one in range(number, number + 500))
        table.receive_untrusted(NODE, kinds.Interest(1 + number, False, more, ()))
    assert len(table._matcher.shapes) == 1
    assert [wanted.terms.pattern for wanted in table.match("orders.777.created")] == ["orders.777.*"]


def test_terms_with_the_same_pattern_are_bounded() -> None:
    table = InterestTable()
    groups = tuple(Terms("a.b", f"g{number}", False) for number in range(16))
    table.receive_untrusted(NODE, kinds.Interest(1, False, groups, ()))
    table.receive_untrusted(NODE, kinds.Interest(2, False, (plain("a.b"), Terms("a.c", "g", False)), ()))
    with pytest.raises(RemoteProtocolError, match=r"'a\.b' in more than 16 ways"):
        table.receive_untrusted(NODE, kinds.Interest(3, False, (Terms("a.b", None, True),), ()))
    table.receive_untrusted(NODE, kinds.Interest(3, False, (), groups[:1]))
    table.receive_untrusted(NODE, kinds.Interest(4, False, (Terms("a.b", None, True),), ()))


def test_terms_for_groups_that_may_all_match_one_event_are_bounded() -> None:
    table = InterestTable()
    groups = tuple(Terms(f"a.{number}.>", f"g{number}", False) for number in range(256))
    table.receive_untrusted(NODE, kinds.Interest(1, False, groups, ()))
    more = tuple(Terms(f"a.{number}", f"g{number}", False) for number in range(256))
    table.receive_untrusted(NODE, kinds.Interest(2, False, (plain("a.>"), *more), ()))
    with pytest.raises(RemoteProtocolError, match="more than 256 patterns with wildcards for groups"):
        table.receive_untrusted(NODE, kinds.Interest(3, False, (Terms("*", "g", False),), ()))


changes = st.tuples(st.integers(0, 2), st.booleans(), st.lists(any_terms, max_size=6), st.lists(any_terms, max_size=3))


@given(st.lists(changes, max_size=20))
def test_what_terms_cost_is_counted_exactly(steps: list[tuple[int, bool, list[Terms], list[Terms]]]) -> None:
    """It is so whatever is announced, begun anew, left unended or too much."""
    table = InterestTable(6 * EACH)
    for version, whole, added, removed in steps:
        with contextlib.suppress(RemoteProtocolError):
            table.receive_untrusted(NODE, kinds.Interest(version, whole, tuple(added), tuple(removed)))
        known = list(table.terms_of(NODE))
        counted = interest._Extent()
        for terms in known:
            counted.add(terms)
        if known:
            extent = table._known[NODE].extent
            for name in interest._Extent.__slots__:
                assert getattr(extent, name) == getattr(counted, name)
        assert held(table) <= 12 * EACH
        assert table.needs_link(NODE) == any(one.group is None and (one.durable or one.patient) for one in known)
        assert len(table._matcher) == len(known)
    table.forget(NODE)
    assert not table.needs_link(NODE)
    assert not table._patient


def test_a_node_learns_at_once_that_others_would_not_take_what_it_subscribes_to() -> None:
    own = OwnInterest(2 * EACH)
    for terms in numbered(10, 2):
        own.check(terms)
        own.add(terms)
    own.check(plain("t.11"))  # again
    with pytest.raises(ConfigError, match=r"cannot subscribe to 't\.12': .* more than \d+ bytes .*interest_bytes"):
        own.check(plain("t.12"))
    own.remove(plain("t.10"))
    own.check(plain("t.12"))


def test_a_narrowed_right_takes_what_it_no_longer_permits() -> None:
    table = InterestTable()
    table.receive_untrusted(NODE, kinds.Interest(1, True, (A, C), ()))
    assert table.narrow(NODE, lambda pattern: pattern == "a.>")
    assert not table.narrow(NODE, lambda pattern: pattern == "a.>"), "it is gone"
    assert not table.narrow(OTHER, lambda _: False), "nothing is known of that node"


def test_who_has_publishers_wait_is_known_by_the_pattern_for_as_long_as_it_does() -> None:
    table = InterestTable()
    patient, grouped = Terms("a.*", None, False, True), Terms("a.*", "workers", False, True)
    table.receive_untrusted(NODE, kinds.Interest(1, True, (A, C, patient, grouped), ()))
    assert table.is_patient(NODE, "a.*")
    assert not any(table.is_patient(*other) for other in [(NODE, "a.>"), (NODE, "a.b"), (OTHER, "a.*")])
    table.receive_untrusted(NODE, kinds.Interest(2, False, (), (patient,)))
    assert table.is_patient(NODE, "a.*")
    table.receive_untrusted(NODE, kinds.Interest(3, True, (A, C), ()))
    assert not table.is_patient(NODE, "a.*")
    table.receive_untrusted(NODE, kinds.Interest(4, False, (patient,), ()))
    table.narrow(NODE, lambda pattern: pattern == "a.>")
    assert not table.is_patient(NODE, "a.*")
    table.receive_untrusted(NODE, kinds.Interest(5, False, (patient,), ()))
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
    table.receive_untrusted(NODE, kinds.Interest(1, True, (A,), ()))
    version = table.version
    with pytest.raises(RemoteProtocolError):
        table.receive_untrusted(NODE, arrived(kinds.Interest, *fields))
    assert (table.version, [wanted.terms for wanted in table.match("a.b")]) == (version, [A])
