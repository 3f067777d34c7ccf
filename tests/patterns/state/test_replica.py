"""Replicas of documents: equal after any order and repetition, whatever anybody sends, and bounded."""

from __future__ import annotations

import gc
import random
import resource
import tracemalloc
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iris.kernel.errors import ConfigError, Overloaded, RemoteProtocolError
from iris.patterns.state.entries import (
    COUNTER,
    MAX_PARTS,
    MAX_VALUE,
    OVERHEAD,
    SET,
    VALUE,
    WRITERS,
    Edit,
    Entry,
    check_entries_untrusted,
    encode,
    read_edit_untrusted,
    read_untrusted,
    write_value,
)
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedCounter, SharedMap, SharedSet
from iris.patterns.state.sync import Header, Snapshot
from tests.support.held import MOST_HELD, lasted, longest
from tests.support.states import (
    ALL,
    EDITS,
    NOW,
    absorb,
    agree,
    attack,
    content,
    edit,
    forged,
    give,
    merging,
    mutated,
    replica,
    send,
    with_number,
)

STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, EDITS + 3), st.integers(0, 2)),
    max_size=40,
)


def settle(replicas: list[Replica]) -> None:
    """Compare all with all until none has more than another."""
    for _ in range(3 * len(replicas)):
        for one in replicas:
            for other in replicas:
                give(one, other)
    assert len({one.digest() for one in replicas}) == 1
    first = content(replicas[0])
    assert all(content(one) == first for one in replicas)


@given(STEPS, st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_replicas_are_equal_after_any_order_of_edits_comparisons_and_losses(
    steps: list[tuple[int, int, int]], seed: int
) -> None:
    rng = random.Random(seed)
    replicas = [replica(seed + number) for number in range(3)]
    sent: list[bytes] = []
    for who, what, whom in steps:
        one, other = replicas[who], replicas[whom]
        if what < EDITS:
            edit(one, what, rng)
        elif what == EDITS:
            sent += map(encode, one.pop_edits())
        elif what == EDITS + 1 and sent:
            attack(other, rng.choice(sent))  # late, early, again, or never
        elif what == EDITS + 2:
            give(one, other)
        else:
            attack(other, encode(forged(rng, one)))
    settle(replicas)


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_what_is_written_and_comes_while_a_long_comparison_is_merged_counts(seed: int) -> None:
    """It is merged in steps, between which the replica goes on."""
    rng = random.Random(seed)
    one, other, third = (replica(seed + number) for number in range(3))
    for each in (one, other, third):
        SharedMap(each, "").update({f"{rng.randrange(100)}": number for number in range(60)})
        each.pop_edits()
    give(third, other)
    for key in rng.sample(sorted(SharedMap(other, "")), 10):
        del SharedMap(other, "")[key]
    if rng.random() < 0.5:
        give(one, other)
    mine, entries = 0, {entry.dot: entry for entry in other.all_entries()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iris.patterns.state.replica.AT_A_TIME", 8)
        for _ in one.absorb(dict(other.vector), ALL, entries):
            for _ in range(rng.randrange(4)):
                edit(one, rng.randrange(EDITS), rng)
                SharedCounter(one, "", "mine").add(1)
                mine += 1
            send(one, third)
            attack(one, encode(forged(rng, third)))
    assert mine
    assert SharedCounter(one, "", "mine").value == mine
    settle([one, other, third])
    assert SharedCounter(third, "", "mine").value == mine


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_what_anybody_sends_can_be_read_by_all_and_leaves_them_equal(seed: int) -> None:
    rng = random.Random(seed)
    replicas = [replica(number, max_bytes=20_000) for number in range(3)]
    for _ in range(60):
        one = rng.choice(replicas)
        edit(one, rng.randrange(EDITS), rng)
        data = encode(forged(rng, one))
        for target in replicas:
            if rng.random() < 0.7:
                attack(target, data if rng.random() < 0.5 else mutated(rng, data))
    settle(replicas)


def test_a_large_document_is_merged_in_steps_and_seen_at_once() -> None:
    """Two members that were parted, with 12,000 keys of which half were overwritten, and a quarter deleted."""
    one, other = replica(1, max_bytes=10_000_000), replica(2, max_bytes=10_000_000)
    for number in range(12_000):
        SharedMap(one, "")[f"key.{number}"] = 1
    give(one, other)
    for number in range(12_000):
        if number % 4:
            SharedMap(other, "")[f"key.{number}"] = 2
        else:
            del SharedMap(other, "")[f"key.{number}"]
    seen: set[tuple[Any, ...]] = set()

    def steps() -> Iterator[None]:
        for _ in merging(other, one):
            seen.add((one.size, SharedMap(one, "").get("key.1"), SharedMap(one, "").get("key.4")))
            yield

    assert longest(steps()) < MOST_HELD
    assert len(seen) == 2
    assert one.digest() == other.digest()


def test_a_value_of_many_lists_is_read_without_looks_for_garbage() -> None:
    """The collector would look at all of them again and again."""
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        for count, refusal in (
            (MAX_PARTS - 1, nullcontext()),
            (MAX_VALUE - 5, pytest.raises(RemoteProtocolError, match="more than 65520 lists")),
        ):
            came = encode([Entry(WRITERS, VALUE, "", "", "k", b"\xdd" + count.to_bytes(4) + b"\x90" * count)])
            looks = sum(generation["collections"] for generation in gc.get_stats())
            with refusal:
                check_entries_untrusted(read_untrusted(came, list[Entry], "entries"))
            assert sum(generation["collections"] for generation in gc.get_stats()) - looks < 10
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.long
def test_a_million_random_and_mutated_edits_end_hold_up_and_fill_nobody() -> None:
    """None takes long, and what is kept stays within the bound."""
    rng = random.Random(3)
    one, other = replica(1, max_bytes=200_000), replica(2, max_bytes=200_000)
    held, most = 0.0, 0
    for number in range(1_000_000):
        if number == 100_000:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        edit(one, rng.randrange(EDITS), rng)
        data = encode(forged(rng, rng.choice([one, other])))
        data = data if rng.random() < 0.4 else mutated(rng, data) if rng.random() < 0.9 else rng.randbytes(40)
        held = max(held, lasted(partial(attack, rng.choice([one, other]), data)))
        one.pop_edits()
        if number % 1000 == 0:
            settle([one, other])
            assert max(one.size, other.size) <= 400_000
    settle([one, other])
    assert held < MOST_HELD
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most + 10_000, "KiB"


def test_a_deleted_key_and_an_overwritten_one_leave_nothing() -> None:
    one, other = replica(1), replica(2)
    values = SharedMap(one, "")
    for number in range(20_000):
        values[f"key.{number % 100}"] = 7
        if number % 1000 == 0:
            send(one, other)
    send(one, other)
    assert one.size == other.size == 100 * (OVERHEAD + 1) + sum(len(f"key.{number}") for number in range(100))
    assert len(encode([dict(one.vector), one.all_entries()])) < 3000
    for key in list(values):
        del values[key]
    send(one, other)
    assert one.size == other.size == 0
    assert content(one) == content(other) == {}


def test_a_write_and_a_removal_at_the_same_time_leave_the_write() -> None:
    one, other = replica(1), replica(2)
    SharedMap(one, "")["k"] = 1
    SharedSet(one, "", "s").add("e")
    send(one, other)
    SharedMap(one, "")["k"] = 2
    SharedSet(one, "", "s").add("e")
    del SharedMap(other, "")["k"]
    SharedSet(other, "", "s").discard("e")
    first, second = one.pop_edits(), other.pop_edits()
    for each in first:
        assert other.apply(each)
    for each in second:
        assert one.apply(each)
    assert one.digest() == other.digest()
    assert (dict(SharedMap(one, "")), set(SharedSet(one, "", "s"))) == ({"k": 2}, {"e"})


def test_an_edit_waits_for_what_its_writer_had_seen() -> None:
    one, two, three = replica(1), replica(2), replica(3)
    SharedMap(one, "")["a"] = 1
    (first,) = one.pop_edits()
    assert two.apply(first)
    SharedMap(two, "")["b"] = 2
    (second,) = two.pop_edits()
    assert not three.apply(second), "it builds on the first"
    assert three.apply(first)
    assert three.apply(second)
    assert dict(SharedMap(three, "")) == {"a": 1, "b": 2}


# -- numbers of writers ----------------------------------------------------------------------------------------


def test_numbers_are_used_again_and_none_that_is_in_use() -> None:
    base = replica(0)
    absorb(base, dict.fromkeys(range(8, WRITERS), 1), (), {})
    for number in range(100):
        one = replica(number, claimed=range(8, 900))
        give(base, one)
        SharedCounter(one, "", "c").add()
        assert one.writer not in range(8, 900)
        send(one, base)
    assert SharedCounter(base, "", "c").value == 100
    assert len(base.vector) == WRITERS


@pytest.mark.parametrize("seed", range(6))
def test_who_comes_back_to_a_number_that_another_one_has_taken_counts_once(seed: int) -> None:
    """It was cut off, and its number seemed free."""
    one, heir = replica(seed, claimed=range(1, WRITERS)), replica(seed + 9, claimed=range(2, WRITERS))
    for each in (one, heir):
        absorb(each, {1: 1}, (), {})  # so that there is no number that nobody has used
    SharedCounter(one, "", "c").add(5)
    give(one, heir)
    SharedCounter(heir, "", "c").add(10)
    SharedCounter(one, "", "c").add(1)
    for _ in range(3):
        settle([one, heir])
    assert SharedCounter(one, "", "c").value == 16


def test_two_writers_with_one_number_lose_nothing() -> None:
    claimed = set(range(1, WRITERS))
    one, other = replica(5, claimed=claimed), replica(6, claimed=claimed)
    for each, number in ((one, 1), (other, 2)):
        SharedMap(each, "")[f"own.{number}"] = number
        SharedCounter(each, "", "c").add(number)
        SharedCounter(each, "", "c").add(10)
        SharedSet(each, "", "s").add(number)
    assert one.writer == other.writer
    claimed -= set(range(1, 100))
    first, second = one.pop_edits(), other.pop_edits()
    assert all(map(other.apply, first))
    assert all(map(one.apply, second))
    settle([one, other])
    for _ in range(3):
        send(one, other)
        send(other, one)
    settle([one, other])
    assert content(one) == {
        "value ": "{'own.1': 1, 'own.2': 2}",
        "counter ": {"c": 23},
        "set  s": [1, 2],
    }


def test_what_another_user_of_its_number_hides_while_a_long_comparison_is_merged_is_written_anew_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other, third = with_number(1, 7), with_number(2, 7), replica(3)
    SharedMap(one, "")["a"] = 1
    SharedCounter(one, "", "c").add(5)
    SharedMap(other, "").update({"b": 20, "d": 21})  # whose hashes are greater
    SharedMap(third, "").update({f"{number}": number for number in range(9)})
    monkeypatch.setattr("iris.patterns.state.replica.AT_A_TIME", 3)
    steps = merging(third, one)
    next(steps)
    send(other, one)
    assert one.hidden == 2
    del SharedMap(one, "")["a"]
    deque(steps, maxlen=0)
    assert ("a" in SharedMap(one, ""), SharedCounter(one, "", "c").value) == (False, 5)
    assert one.hidden == 2


def test_what_waits_to_be_written_anew_gives_way_to_what_its_writer_writes_and_removes_meanwhile() -> None:
    one, other = with_number(1, 7), with_number(2, 7)
    document = SharedMap(one, "")
    document.update({f"a{number}": number for number in range(400)})
    SharedMap(other, "").update({f"b{number}": number for number in range(400)})
    send(other, one)
    waiting = [key for key in (f"a{number}" for number in range(400)) if key not in document]
    assert len(waiting) > 100
    for key in waiting[-20:]:
        document[key] = "new"
        del document[key]
    document[waiting[-21]] = "newer"
    while one.is_rewriting:
        one.pop_edits()
    assert [key for key in waiting[-20:] if key in document] == []
    assert document[waiting[-21]] == "newer"
    assert [key for key in waiting[:-21] if key not in document] == []


def test_what_a_long_comparison_hides_gives_way_to_what_its_writer_removes_before_the_last_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other, third = with_number(1, 7), with_number(2, 7), replica(3)
    document = SharedMap(one, "")
    document.update({f"a{number}": number for number in range(9)})
    SharedMap(other, "").update({f"b{number}": number for number in range(9)})
    give(other, third)
    monkeypatch.setattr("iris.patterns.state.replica.AT_A_TIME", 3)
    gone: set[str] = set()
    for _ in merging(third, one):
        for key in {f"a{number}" for number in range(9)} - {*document}:
            gone.add(key)
            document[key] = "new"
            del document[key]
        one.pop_edits()
        assert one.is_rewriting or all(f"a{number}" in document or f"a{number}" in gone for number in range(9))
    while one.is_rewriting:
        one.pop_edits()
    assert gone
    assert [key for key in gone if key in document] == []


def test_own_writes_are_not_settled_while_a_long_comparison_has_hidden_them(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, third = with_number(1, 7), with_number(2, 7), replica(3)
    document = SharedMap(one, "")
    document.update({f"a{number}": number for number in range(9)})
    SharedMap(other, "").update({f"b{number}": number for number in range(9)})
    give(other, third)
    monkeypatch.setattr("iris.patterns.state.replica.AT_A_TIME", 3)
    hidden = 0
    for _ in merging(third, one):
        one.pop_edits()  # as the task that sends them does
        if not {f"a{number}" for number in range(9)} <= {*document}:
            hidden += 1
            assert one.is_rewriting
    assert hidden > 2


@pytest.mark.parametrize("how", ["pop", "del", "clear"])
def test_what_waits_to_be_written_anew_is_removed_as_what_is_seen(how: str) -> None:
    one, other = with_number(1, 7), with_number(2, 7)
    document, elements, beside = SharedMap(one, ""), SharedSet(one, "", "s"), SharedMap(one, "m")
    numbers = range(200)
    document.update({f"a{number}": number for number in numbers})
    for number in numbers:
        elements.add(number)
    beside.update({f"a{number}": number for number in numbers})
    SharedMap(other, "").update({f"b{number}": number for number in range(600)})
    send(other, one)
    assert min(len(document), len(elements), len(beside)) < 200
    for number in numbers:
        if how == "pop":
            document.pop(f"a{number}", None)
            elements.discard(number)
        elif how == "del":
            with suppress(KeyError):  # as a program does that wants it gone
                del document[f"a{number}"]
            with suppress(KeyError):
                elements.remove(number)
    if how == "clear":
        document.clear()
        elements.clear()
    while one.is_rewriting:
        one.pop_edits()
    assert [key for key in document if key.startswith("a")] == []
    assert (len(elements), len(beside)) == (0, 200)
    assert document.pop("a1", default=5) == 5
    for missing in (lambda: document.pop("a1"), lambda: elements.remove(1), lambda: elements.remove(5j)):
        with pytest.raises(KeyError):
            missing()


def test_what_comes_while_a_long_comparison_is_merged_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, third = replica(1), replica(2), replica(3)
    SharedMap(third, "").update({f"{number}": number for number in range(9)})
    monkeypatch.setattr("iris.patterns.state.replica.AT_A_TIME", 3)
    steps = merging(third, one)
    next(steps)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(100):
            SharedMap(other, "")["k"] = f"{number}" + "x" * 250_000
            send(other, one)
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()
    deque(steps, maxlen=0)
    assert SharedMap(one, "")["k"].startswith("99")
    assert len(SharedMap(one, "")) == 10


def test_who_forges_a_writers_next_numbers_does_not_silence_it() -> None:
    one, other = replica(1), replica(2)
    SharedMap(one, "")["mine"] = 1
    send(one, other)
    for _ in range(20):
        writer, first = one.writer, one.vector[one.writer] + 1
        attack(other, encode(Edit(writer, first, 5, {}, [], [])))
        SharedMap(one, "")["mine"] = SharedMap(one, "")["mine"] + 1
        send(one, other)
        give(other, one)  # as they compare
        send(one, other)
        give(one, other)
        SharedMap(one, "")["after"] = SharedMap(one, "")["mine"]
        send(one, other)
        assert SharedMap(other, "")["after"] == SharedMap(one, "")["after"]
    settle([one, other])
    assert SharedMap(other, "")["mine"] == 21


def test_numbers_that_the_date_does_not_allow_use_up_none_and_part_nobody() -> None:
    one = replica(1)
    bound = int((NOW + 86_400) * 1e6)
    with pytest.raises(RemoteProtocolError, match="more writes than microseconds"):
        one.apply(Edit(1, bound, 2, {}, [], []))
    ahead, honest = (
        Entry(number * WRITERS + writer, VALUE, "", "", f"key.{writer}", b"\x01")
        for writer, number in ((1, bound + 1), (2, 1))
    )
    entries = {entry.dot: entry for entry in (ahead, honest)}
    absorb(one, {1: bound + 1, 2: 1}, ALL, entries)
    assert (dict(SharedMap(one, "")), one.vector) == ({"key.2": 1}, {2: 1}), "what others wrote comes all the same"
    del SharedMap(one, "")["key.2"]
    absorb(one, dict.fromkeys(range(WRITERS), bound - 10), (), {})
    for number in range(5):
        SharedMap(one, "")["k"] = number
    other = replica(2)
    send(one, other)
    give(one, other)
    assert dict(SharedMap(other, "")) == {"k": 4}


# -- bounds ----------------------------------------------------------------------------------------------------


def test_a_full_document_refuses_what_makes_it_larger_and_nothing_else() -> None:
    one = replica(1, max_bytes=100_000)
    values = SharedMap(one, "")
    for number in range(400):
        values[f"key.{number}"] = "x" * 100
    with pytest.raises(Overloaded, match="100000 are the most"):
        values.update({f"more.{number}": "x" * 100 for number in range(100)})
    assert one.size <= 100_000
    values["key.0"] = "y" * 100
    values["key.1"] = 1
    del values["key.2"]
    SharedCounter(replica(2, max_bytes=1), "", "c")
    with pytest.raises(Overloaded):
        SharedCounter(replica(2, max_bytes=1), "", "c").add()


def test_who_fills_a_document_takes_no_room_from_those_who_have_written_little() -> None:
    one, other = replica(1, max_bytes=1_000_000), replica(2, max_bytes=1_000_000)
    SharedMap(one, "")["mine"] = "x" * 10_000
    send(one, other)
    for number in range(40):
        writer, value = number % 3 + 500, write_value("y" * 200_000)
        first = one.vector.get(writer, 0) + 1
        entry = Entry(first * WRITERS + writer, VALUE, "", "", f"junk.{number}", value)
        attack(one, encode(Edit(writer, first, 1, {}, [entry], [])))
        assert one.size <= 2_000_000
    assert one.evicted > 0
    SharedMap(one, "")["more"] = "x" * 10_000
    send(one, other)
    give(one, other)
    settle([one, other])
    assert {"mine", "more"} <= set(SharedMap(other, ""))


@pytest.mark.parametrize(
    "entry",
    [
        Entry(1024, VALUE, "", "", "k", b""),
        Entry(1024, VALUE, "", "", "k", b"\xc1"),
        Entry(1024, VALUE, "", "", "k", b"\x01\x01"),
        Entry(1024, VALUE, "", "", "", b"\x01"),
        Entry(1024, VALUE, "", "n", "k", b"\x01"),
        Entry(1024, VALUE, "", "", "k", b"\xd4\x05\x00"),
        Entry(1024, VALUE, "", "", "k", b"\xd6\xff\x00\x00\x00\x00"),
        Entry(1024, VALUE, "", "", "k", b"\x81\x01\x01"),
        Entry(1024, VALUE, "", "", "k", b"\x91" * 17 + b"\x01"),
        Entry(1024, VALUE, "", "", "k", b"\x91" * 100_000 + b"\x01"),
        Entry(1024, VALUE, "ü" * 1024, "", "k", b"\x01"),
        Entry(1024, COUNTER, "", "", "k", b"\x01"),
        Entry(1024, COUNTER, "", "", "k", encode((1, 1, True, 1, 1))),
        Entry(1024, COUNTER, "", "", "k", encode((2**53 + 1, 0, 0, 0, 0))),
        Entry(1024, SET, "", "s", "1 ", b""),
        Entry(1024, SET, "", "s", "1", b"\x01"),
        Entry(1024, SET, "", "s", "{}", b""),
        Entry(1024, SET, "", "s", "[" * 1000, b""),
        Entry(1024, SET, "", "s", "1" * 1024, b""),
        Entry(1024, SET, "", "", "1", b""),
    ],
    ids=repr,
)
def test_an_entry_that_somebody_could_not_read_is_refused(entry: Entry) -> None:
    data = encode(Edit(0, 1, 1, {}, [entry], []))
    with pytest.raises(RemoteProtocolError, match="an entry is malformed"):
        read_edit_untrusted(data)
    with pytest.raises(RemoteProtocolError, match="an entry is malformed"):
        check_entries_untrusted(read_untrusted(encode([entry]), list[Entry], "entries"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"noise",
        encode([1, 1, 1, {}, [], [], 1]),
        encode([1024, 1, 1, {}, [], []]),
        encode([0, 0, 1, {}, [], []]),
        encode([0, -1, 1, {}, [], []]),
        encode([0, 1, 1, {2000: 1}, [], []]),
        encode([0, 1, 1, {}, [], [-1]]),
        encode([0, 2, 1, {}, [Entry(1024, VALUE, "", "", "k", b"\x01")], []]),
        encode([1, 1, 1, {}, [Entry(1024, VALUE, "", "", "k", b"\x01")], []]),
        encode([0, 1, 1, {}, [Entry(1024, 3, "", "", "k", b"\x01")], []]),
        b"\x96\x00\x01\x01\x80\x91\x96\xcd\x04\x00\x00\xa0\xa0\xa1\xff\xc4\x01\x01\x90",
    ],
    ids=repr,
)
def test_a_malformed_edit_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"an edit|the writes"):
        read_edit_untrusted(data)


def test_values_come_back_as_they_were_and_others_are_refused() -> None:
    values = SharedMap(replica(), "")
    held: tuple[object, ...] = (
        None,
        True,
        1,
        -(2**63),
        2**64 - 1,
        1.5,
        2.0,
        "ü",
        b"\x00",
        [1, [2]],
        {"a": {"b": [None]}},
    )
    for value in held:
        values["k"] = value
        assert repr(values["k"]) == repr(value)
    nested: list[object] = []
    for _ in range(16):
        nested = [nested]
    for wrong in (2**64, object(), {1: 2}, {1, 2}, "\ud800", ["\ud800"], nested, "x" * MAX_VALUE):
        with pytest.raises(ConfigError):
            values["k"] = wrong
    for key in ("", "x" * 1025, "\ud800", 1):
        with pytest.raises(ConfigError, match="is no text of 1 to 1024 bytes"):
            values[key] = 1  # type: ignore[index]
    with pytest.raises(ConfigError):
        values.update(good=1, wrong=object())
    assert dict(values) == {"k": {"a": {"b": [None]}}}, "a refused update changes nothing"


def test_counters_and_sets_take_what_they_hold_only() -> None:
    one = replica()
    counter, elements = SharedCounter(one, "", "c"), SharedSet(one, "", "s")
    for wrong in (1.5, True, "1", 2**54):
        with pytest.raises(ConfigError, match="use whole numbers"):
            counter.add(wrong)  # type: ignore[arg-type]
    counter.add(2**53)
    with pytest.raises(ConfigError, match="of 53 bits together"):
        counter.add(1)
    counter.add(-(2**53))
    assert counter.value == 0
    elements |= {1, 2.0, "x", (1, ("y", None))}
    assert set(elements) == {1, 2, "x", (1, ("y", None))}
    assert 2 in elements
    assert (1.0, ("y", None)) in elements, "equal to Python, and so one element"
    assert object() not in elements
    elements_refused: tuple[object, ...] = (b"x", [1], {"a": 1}, "x" * 1024)
    for refused in elements_refused:
        with pytest.raises(ConfigError):
            elements.add(refused)


def test_a_replica_with_entries_that_its_vector_does_not_count_is_refused() -> None:
    entry = Entry(2 * WRITERS, VALUE, "", "", "k", b"\x01")
    with pytest.raises(RemoteProtocolError, match="its vector does not count"):
        Snapshot(Header({0: 1}, [], []), 1e6).add_untrusted(encode([entry]))


def test_who_takes_a_number_that_was_left_keeps_it_when_its_other_former_user_leaves_it_too() -> None:
    one, other = with_number(1, 7), with_number(2, 7)
    SharedMap(one, "")["a"] = 1
    SharedMap(other, "")["b"] = 2
    one.leave(7)
    third = replica(3, claimed=[number for number in range(WRITERS) if number != 7])
    give(one, third)
    SharedMap(third, "")["c"] = 3
    give(third, other)
    assert (third.writer, other.writer == 7) == (7, False)
    give(other, third)
    assert third.writer == 7
    settle([one, other, third])
    assert dict(SharedMap(one, "")) == {"a": 1, "b": 2, "c": 3}


def test_who_leaves_a_number_that_was_left_counts_nothing_that_its_next_user_has_written() -> None:
    one, other, third = with_number(1, 7), with_number(2, 7), replica(3)
    SharedMap(one, "")["a"] = 1
    SharedMap(other, "")["b"] = 2
    one.leave(7)
    heir = replica(4, claimed=[number for number in range(WRITERS) if number != 7])
    for each in (heir, third):
        give(one, each)
    SharedMap(heir, "")["c"] = 3
    give(heir, other)
    send(other, third)  # before what the heir sends, of which the third would believe that it was removed
    send(heir, third)
    agree(one, other, heir, third)
    assert (dict(SharedMap(heir, "")), heir.writer) == ({"a": 1, "b": 2, "c": 3}, 7)


def test_who_has_left_some_numbers_takes_one_that_was_left_where_all_are_used() -> None:
    one, other = with_number(1, 7), with_number(2, 8)
    SharedMap(one, "")["a"] = 1
    one.leave(7)
    SharedMap(other, "")["b"] = 2
    other.vector.update(dict.fromkeys(range(WRITERS), 1))
    give(one, other)
    while len(other.starts) < 4:
        other.leave(other.writer)
        SharedMap(other, "")["c"] = 3
    assert other.writer == 7


def test_who_starts_where_all_numbers_are_used_does_not_take_the_one_that_all_others_take_as_well() -> None:
    left = with_number(0, 7)
    SharedMap(left, "")["a"] = 1
    left.leave(7)
    left.vector.update(dict.fromkeys(set(range(WRITERS)) - set(left.vector), 1))
    replicas = [replica(seed) for seed in range(1, 9)]
    for one in replicas:
        give(left, one)
        SharedCounter(one, "", "c").add(1)
    assert len({one.writer for one in replicas}) == 8


@pytest.mark.long
@pytest.mark.parametrize(("count", "wrong"), [(600, 0), (1000, 20)])  # beyond 600 a counter may be wrong
def test_many_replicas_that_each_wrote_are_equal_after_some_rounds(count: int, wrong: int) -> None:
    rng = random.Random(5)
    replicas = [replica(number, max_bytes=10_000_000) for number in range(count)]
    for number, one in enumerate(replicas):
        SharedMap(one, "")[f"key.{number % 300}"] = number
        SharedCounter(one, "", "c").add(1)
    for _ in range(50):  # nobody knows which numbers others use
        for one in replicas:
            other = rng.choice(replicas)
            give(other, one)
            give(one, other)
            one.pop_edits()
        if len({one.digest() for one in replicas}) == 1:
            break
    assert len({one.digest() for one in replicas}) == 1
    assert abs(SharedCounter(replicas[0], "", "c").value - count) <= wrong


@pytest.mark.parametrize("seed", range(3))
def test_many_writers_that_share_few_numbers_count_each_addition_once(seed: int) -> None:
    rng = random.Random(seed)
    claimed = set(range(48, WRITERS))
    replicas = [replica(1000 * seed + number, claimed=claimed) for number in range(40)]
    for number, one in enumerate(replicas):
        SharedMap(one, "")[f"key.{number % 13}"] = number
        SharedCounter(one, "", "c").add(1)
    for turn in range(40):
        if turn == 2:
            claimed -= set(range(900))
        for one in replicas:
            other = rng.choice(replicas)
            if rng.random() < 0.5:
                send(one, *rng.sample(replicas, 5))
            give(other, one)
            give(one, other)
        if turn > 3 and len({one.digest() for one in replicas}) == 1:
            break
    settle(replicas[:2])
    assert [SharedCounter(one, "", "c").value for one in replicas] == [40] * 40
