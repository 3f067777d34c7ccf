"""Replicas are equal when they have the same edits: in any order, however often, and over any partition."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError, Overloaded, RemoteProtocolError
from iris.patterns.state.replica import MissingUpdates, Replica
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet, SharedText
from iris.patterns.state.updates import UpdateExtent, read_vector_untrusted
from tests.support.states import EDITS, content, edit, give, replica

REPLICAS = 4
STEPS = st.one_of(
    st.tuples(st.just("edit"), st.integers(0, REPLICAS - 1), st.integers(0, EDITS - 1), st.integers(0, 2**16)),
    st.tuples(st.just("give"), st.integers(0, REPLICAS - 1), st.integers(0, REPLICAS - 1), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(0, REPLICAS - 1), st.integers(0, 2**16), st.just(0)),
    st.tuples(st.just("cut"), st.integers(1, REPLICAS - 1), st.just(0), st.just(0)),
)


def exchange(replicas: list[Replica]) -> None:
    """Have every replica get from every other one."""
    for target in replicas:
        for source in replicas:
            give(source, target)


def take(one: Replica, edits: tuple[bytes, bytes]) -> bool:
    """Give a replica what another one has sent; tell whether it was there in time."""
    needs, update = edits
    if not one.covers(read_vector_untrusted(needs)):
        return False
    try:
        one.apply(update, one.extent_untrusted(update))
    except MissingUpdates:
        return False
    return True


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=60))
def test_replicas_converge_whatever_comes_when_and_however_often(
    steps: list[tuple[str, int, int, int]],
) -> None:
    replicas = [replica(number + 1) for number in range(REPLICAS)]
    sent: list[tuple[int, tuple[bytes, bytes]]] = []
    cut = 0  # replicas below it do not see the others

    def linked(one: int, other: int) -> bool:
        return not cut or (one < cut) == (other < cut)

    for kind, one, other, seed in steps:
        if kind == "edit":
            edit(replicas[one], other, random.Random(seed))
            if (edits := replicas[one].take_edits()) is not None:
                sent.append((one, edits))
        elif kind == "give" and linked(one, other):
            give(replicas[one], replicas[other])
        elif kind == "deliver" and sent:
            source, edits = sent[other % len(sent)]
            if linked(source, one):
                take(replicas[one], edits)
        elif kind == "cut":
            cut = 0 if cut else one
    for _ in range(2):
        exchange(replicas)
    assert len({one.digest() for one in replicas}) == 1
    assert all(content(one) == content(replicas[0]) for one in replicas)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_edits_alone_converge_in_any_order(seed: int, order: random.Random) -> None:
    """Without any comparing: what cannot be taken yet waits, as in a node."""
    rng, replicas, sent = random.Random(seed), [replica(1), replica(2), replica(3)], list[tuple[bytes, bytes]]()
    for _ in range(20):
        one = rng.choice(replicas)
        edit(one, rng.randrange(EDITS), rng)
        if (edits := one.take_edits()) is not None:
            sent.append(edits)
            if rng.random() < 0.5:
                take(rng.choice(replicas), edits)
    for one in (*replicas, late := replica(4)):
        waiting = [*sent, *sent]  # each twice
        order.shuffle(waiting)
        while waiting:
            left = [edits for edits in waiting if not take(one, edits)]
            assert len(left) < len(waiting)
            waiting = left
    assert all(one.digest() == late.digest() and content(one) == content(late) for one in replicas)


def test_equal_vectors_mean_equal_documents_also_after_deletions() -> None:
    first, second = replica(1), replica(2)
    SharedMap(first, "values")["a"] = 1
    give(first, second)
    SharedText(second, "t").append("abc")
    give(second, first)
    assert first.digest() == second.digest()
    del SharedMap(second, "values")["a"]
    assert first.digest() != second.digest(), "a deletion counts"
    SharedText(second, "t").delete(0, 2)
    give(second, first)
    assert first.digest() == second.digest()
    assert content(first) == content(second) == content(first) | {"values": {}, "text": "c"}


def test_an_edit_waits_for_what_its_writer_had_seen() -> None:
    """Also where the two have to do with different keys, and where what was seen is a deletion."""
    first, second, third = replica(1), replica(2), replica(3)
    SharedMap(first, "values")["order"] = "sent"
    sent = first.take_edits()
    assert sent is not None
    assert take(third, sent)
    del SharedMap(first, "values")["order"]
    deleted = first.take_edits()
    assert deleted is not None
    assert take(second, sent)
    assert take(second, deleted)
    SharedMap(second, "values")["stock"] = 5
    stock = second.take_edits()
    assert stock is not None
    assert not take(third, stock), "the deletion that came before it is missing"
    assert "stock" not in SharedMap(third, "values")
    assert take(third, deleted)
    assert take(third, stock)
    assert dict(SharedMap(third, "values")) == {"stock": 5}


def test_keys_are_in_one_order_everywhere() -> None:
    one, other = replica(1), replica(2)
    for key in ("b", "c", "a", "d"):
        SharedMap(one, "values")[key] = key
    give(one, other)
    assert list(SharedMap(one, "values")) == list(SharedMap(other, "values")) == ["a", "b", "c", "d"]


def test_several_edits_are_one_for_others() -> None:
    first, second = replica(1), replica(2)
    with first.edit():
        SharedMap(first, "values")["from"] = -5
        SharedMap(first, "values")["to"] = 5
        SharedCounter(first, "c").add(1)
    edits = first.take_edits()
    assert edits is not None
    assert first.take_edits() is None
    assert take(second, edits)
    assert content(second) == content(first)


def test_an_update_is_one_change() -> None:
    one = replica(1, max_keys=3)
    SharedMap(one, "values").update({"a": 1}, b=2)
    edits = one.take_edits()
    assert edits is not None
    other = replica(2)
    assert take(other, edits)
    assert dict(SharedMap(other, "values")) == {"a": 1, "b": 2}


def test_a_later_write_counts_if_it_had_seen_the_other_whatever_the_replicas_numbers() -> None:
    for numbers in ((1, 2), (2, 1)):
        early, late = map(replica, numbers)
        SharedMap(early, "values")["eur"] = 1
        give(early, late)
        SharedMap(late, "values")["eur"] = 2
        give(late, early)
        assert SharedMap(early, "values")["eur"] == SharedMap(late, "values")["eur"] == 2


def test_what_all_have_added_to_a_counter_counts() -> None:
    replicas = [replica(number + 1) for number in range(5)]
    for one in replicas:
        for step in range(10):
            SharedCounter(one, "c").add(step - 3)
    exchange(replicas)
    assert {SharedCounter(one, "c").value for one in replicas} == {5 * 15}


def simulate(members: int, rng: random.Random) -> int:
    """Have many replicas write, and compare with one drawn at random; return the rounds until they are equal."""
    replicas = [replica(rng.getrandbits(53), max_keys=10_000) for _ in range(members)]
    for at, one in enumerate(replicas):
        SharedMap(one, "values")[f"key.{at}"] = at
        SharedMap(one, "values")["same"] = at
        SharedSet(one, "s").add(at % 10)
    rounds = 0
    while len({one.digest() for one in replicas}) > 1:
        rounds += 1
        for one in replicas:
            other = rng.choice(replicas)
            give(one, other)
            give(other, one)
    assert len({SharedMap(one, "values")["same"] for one in replicas}) == 1
    assert all(len(SharedMap(one, "values")) == members + 1 for one in replicas)
    return rounds


def test_a_hundred_replicas_converge_in_few_rounds() -> None:
    assert simulate(100, random.Random(5)) <= 8


@pytest.mark.long
def test_a_thousand_replicas_converge_in_few_rounds() -> None:
    assert simulate(1000, random.Random(5)) <= 10


def test_a_hundred_thousand_keys_join_within_five_seconds() -> None:
    full = replica(1, max_keys=100_000, max_bytes=16_000_000)
    with full.edit():
        for at in range(100_000):
            SharedMap(full, "values")[f"key.{at}"] = at
    new = replica(2, max_keys=100_000, max_bytes=16_000_000)
    started = time.perf_counter()
    size = give(full, new)
    assert time.perf_counter() - started < 5
    assert len(SharedMap(new, "values")) == 100_000
    assert size < 100_000 * 30
    SharedMap(full, "values")["key.5"] = "new"
    assert give(full, new) < 300, "the cost of a change is that of the change"


# -- bounds ----------------------------------------------------------------------------------------------------


def test_a_full_document_refuses_what_is_written_and_keeps_what_it_has() -> None:
    one = replica(1, max_keys=3, max_bytes=2000)
    values = SharedMap(one, "values")
    for key in "abc":
        values[key] = key
    with pytest.raises(Overloaded, match="there are 3 keys, which is the limit"):
        values["d"] = 1
    values["a"] = "again"
    with pytest.raises(Overloaded, match=r"would exceed its limit of 2000: delete something, or give max_bytes"):
        values["a"] = "x" * 2000
    assert dict(values) == {"a": "again", "b": "b", "c": "c"}
    for _ in range(1000):
        values["a"] = "what is overwritten takes no room"
    del values["b"]
    values["d"] = 1


def test_others_may_not_fill_a_document_beyond_twice_its_bound() -> None:
    generous, strict = replica(1), replica(2, max_bytes=1000)
    SharedText(generous, "t").append("x" * 1500)
    give(generous, strict)
    SharedText(generous, "t").append("x" * 1500)
    with pytest.raises(RemoteProtocolError, match="would become larger than 2000 bytes"):
        give(generous, strict)
    SharedText(generous, "t").append("x" * 1500)
    with pytest.raises(RemoteProtocolError, match=r"has 4\d+ bytes: it may have 1000"):
        give(generous, replica(3, max_bytes=1000))
    assert len(SharedText(strict, "t")) == 1500


def test_what_is_said_in_this_replicas_name_is_refused() -> None:
    one, other = replica(1), replica(1)
    SharedMap(other, "values")["a"] = "forged"
    with pytest.raises(RemoteProtocolError, match="has not written in its name"):
        give(other, one)
    assert content(one)["values"] == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63, "whole numbers of 64 bits"),
        ({1: 2}, "use text for the keys of a map in a document"),
        (object(), "does not hold a object"),
        ({"a"}, "does not hold a set"),
        ("\ud800", "half of a character"),
        ([[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]], "nested deeper than 16"),
    ],
)
def test_values_that_no_document_holds_are_refused_before_they_are_written(value: object, text: str) -> None:
    one = replica(1)
    with pytest.raises(ConfigError, match=text):
        SharedMap(one, "values")["a"] = value
    assert one.take_edits() is None
    with pytest.raises(ConfigError, match="use a text of 1 to 1024 bytes"):
        SharedMap(one, "values")["k" * 1025] = 1
    with pytest.raises(ConfigError, match="use a text of 1 to 1024 bytes"):
        SharedMap(one, "values")[""] = 1


def test_values_come_back_as_they_were() -> None:
    one = replica(1)
    values = SharedMap(one, "values")
    held: tuple[Any, ...] = (
        None, True, False, 0, -1, 2**53 + 1, -(2**63), 1.07, "", "ü😀", b"\0\xff", [1, [2.5]], {"a": {"b": []}},
    )  # fmt: skip
    for value in held:
        values["key"] = value
        assert values["key"] == value
        assert type(values["key"]) is type(value)
    values["key"] = 2.0
    assert values["key"] == 2
    values["key"] = (1, bytearray(b"x"))
    assert values["key"] == [1, b"x"]


def test_an_extent_says_what_has_to_come_before() -> None:
    extent = UpdateExtent({1: (5, 9)}, {1: 7, 2: 3}, deletes=False)
    extent.check({1: 5, 2: 3})
    with pytest.raises(MissingUpdates):
        extent.check({1: 4, 2: 3})
    with pytest.raises(MissingUpdates):
        extent.check({1: 5, 2: 2})


def test_what_is_counted_is_what_the_document_has() -> None:
    rng = random.Random(9)
    one, two = replica(1), replica(2)
    for number in range(200):
        edit(rng.choice([one, two]), rng.randrange(EDITS), rng)
        if number % 20 == 0:
            SharedMap(one, "values")[f"large.{number}"] = "x" * 100_000
        if number % 7 == 0:
            give(one, two)
        if number % 11 == 0:
            give(two, one)
        for each in (one, two):
            assert each.vector == read_vector_untrusted(each.doc.get_state())


def test_an_edit_of_nothing_leaves_nothing() -> None:
    one = replica(1)
    values = SharedMap(one, "values")
    values["a"] = 1
    before = dict(one.vector)
    with one.edit():
        pass
    assert one.vector == before


def test_what_is_passed_on_comes_before_what_is_written_after_it() -> None:
    """Also if the message that passes it on is lost."""
    member, other, program = replica(1), replica(2), replica(3)
    SharedMap(program, "values")["first"] = 1
    update = program.difference(b"")
    member.apply(update, member.extent_untrusted(update), relay=True)
    assert member.take_edits() is not None
    SharedMap(member, "values")["second"] = 2
    edits = member.take_edits()
    assert edits is not None
    assert not other.covers(read_vector_untrusted(edits[0]))
    give(member, other)
    assert other.covers(read_vector_untrusted(edits[0]))


def test_an_element_of_a_set_has_a_bounded_depth() -> None:
    deep: tuple[Any, ...] = ()
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(ConfigError, match="a value is nested deeper than 16"):
        SharedSet(replica(1), "s").add(deep)
