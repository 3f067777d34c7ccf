"""The roots that publishers announce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.patterns.pubsub.interest import OwnInterest, Terms
from iris.patterns.pubsub.roots import EVERY, Roots, digest_of, is_root, root_of
from tests.support.membership import node

PATTERNS = ["a", "a.b", "a.>", "*", "*.b", ">", "b.*", "realm/a.b", "ab.c"]
TOPICS = ["a", "a.b", "b", "b.c", "ab", "ab.c", "c.b"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("topic", TOPICS)
def test_whoever_may_match_a_topic_wants_its_root(pattern: str, topic: str) -> None:
    own = OwnInterest()
    terms = Terms(pattern, None, durable=False)
    own.add(terms)
    head = pattern.split(".")[0]
    assert own.wants([root_of(topic)]) == (head in ("*", ">", root_of(topic)))
    assert own.wants(["other", EVERY]) == ("/" not in pattern or head == EVERY)
    own.remove(terms)
    assert not own.wants([root_of(topic), EVERY])


@pytest.mark.parametrize(("root", "valid"), [("a", True), (">", True), ("a.b", False), ("*", False), ("", False)])
def test_a_root_is_one_token_or_stands_for_all(root: str, valid: bool) -> None:
    assert is_root(root) is valid


def test_roots_are_added_only_and_too_many_become_all() -> None:
    roots = Roots(node(1))
    assert roots.add(("a", "b"))
    assert not roots.add(("b",))
    assert roots.names == {"a", "b"}
    assert roots.add(tuple(f"root{number}" for number in range(62)))
    assert len(roots.names) == 64
    assert roots.add(("c",))
    assert roots.names == {EVERY}
    assert not roots.add(("d",))


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u732b", "\U0001f408"])
def test_room_for_roots_is_counted_in_bytes(letter: str) -> None:
    long = letter * (511 // len(letter.encode()))
    roots = Roots(node(1))
    assert roots.add((f"{long}1", f"{long}2"))
    assert roots.size == 2 * (len(long.encode()) + 1) <= 1024
    assert EVERY not in roots.names
    assert roots.add((f"{long}3",))
    assert roots.names == {EVERY}
    assert roots.size == 1


@given(st.lists(st.tuples(st.integers(1, 5), st.sets(st.sampled_from("abcdef"), min_size=1)), max_size=20))
def test_tables_that_know_the_same_have_the_same_hash_in_whatever_order_it_came(
    entries: list[tuple[int, set[str]]],
) -> None:
    one, other = ({number: Roots(node(number)) for number in range(1, 10)} for _ in range(2))
    for number, roots in entries:
        one[number].add(roots)
    for number, roots in reversed(entries):
        for root in sorted(roots, reverse=True):
            other[number].add({root})
    assert digest_of(one.values()) == digest_of(other.values())
    one[9].add(("a",))
    assert digest_of(one.values()) != digest_of(other.values())
    del one[9]
    assert digest_of(one.values()) == digest_of(other.values())
