"""The roots that publishers announce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.patterns.pubsub.interest import OwnInterest, Terms
from iris.patterns.pubsub.roots import EVERY, RootTable, is_root, root_of
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
    table = RootTable()
    assert table.add(node(1), ("a", "b"))
    assert not table.add(node(1), ("b",))
    assert table.of(node(1)) == {"a", "b"}
    assert table.add(node(1), tuple(f"root{number}" for number in range(62)))
    assert len(table.of(node(1))) == 64
    assert table.add(node(1), ("c",))
    assert table.of(node(1)) == {EVERY}
    assert not table.add(node(1), ("d",))
    assert table.add(node(2), tuple(f"{number}{'x' * 200}" for number in range(6)))
    assert table.of(node(2)) == {EVERY}


@given(st.lists(st.tuples(st.integers(1, 5), st.sets(st.sampled_from("abcdef"), min_size=1)), max_size=20))
def test_tables_that_know_the_same_have_the_same_hash_in_whatever_order_it_came(
    entries: list[tuple[int, set[str]]],
) -> None:
    tables = RootTable(), RootTable()
    for number, roots in entries:
        tables[0].add(node(number), roots)
    for number, roots in reversed(entries):
        for root in sorted(roots, reverse=True):
            tables[1].add(node(number), {root})
    assert tables[0].digest(tables[0]) == tables[1].digest(tables[1])
    tables[0].add(node(9), ("a",))
    assert tables[0].digest(tables[0]) != tables[1].digest(tables[1])
    tables[0].forget(node(9))
    assert tables[0].digest(tables[0]) == tables[1].digest(tables[1])
