"""Documents without a network: what a member makes of dots, buckets and numbers, and how long it holds the loop."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import Any

import pytest

from iris.kernel.errors import RemoteProtocolError
from iris.patterns.state.entries import (
    AT_A_TIME,
    BUCKETS,
    SET,
    VALUE,
    WRITERS,
    Edit,
    Entry,
    dot_of,
    encode,
    read_edit_untrusted,
    write_value,
)
from iris.patterns.state.entry_index import bucket_of
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedMap, SharedSet
from iris.patterns.state.sync import Header, Snapshot, pieces
from tests.support.held import MOST_HELD, lasted, longest
from tests.support.states import absorb, agree, content, give, merging, replica, with_number

pytestmark = pytest.mark.long
MOST = 16 * 2**20


def fill(one: Replica, writers: range, count: int, size: int = 1) -> None:
    """Have other writers write so many entries, in edits as they come."""
    for writer in writers:
        for first in range(1, count + 1, AT_A_TIME):
            numbers = range(first, min(first + AT_A_TIME, count + 1))
            value = write_value("x" * size)
            added = [Entry(dot_of(writer, number), VALUE, "", "", f"{writer}.{number}", value) for number in numbers]
            assert one.apply(Edit(writer, first, len(numbers), {}, added, []))


@pytest.mark.parametrize("writers", [1, 30, 1000])
def test_an_edit_that_leaves_no_room_holds_the_loop_up_for_some_ms_only(writers: int) -> None:
    one = replica(max_bytes=MOST)
    fill(one, range(writers), 2 * MOST // 137 // writers)
    number, took, before = 0, 0.0, one.evicted
    while one.evicted == before:
        number += 1
        added = [Entry(dot_of(1020, number), VALUE, "", "", f"n{number}", write_value("y" * 60_000))]
        took = lasted(partial(one.apply, Edit(1020, number, 1, {}, added, [])))
    assert one.size <= 2 * MOST
    assert took < MOST_HELD, took


@pytest.mark.parametrize("writers", [1, 1000])
def test_a_comparison_that_is_larger_than_a_document_may_be_holds_nobody_up(writers: int) -> None:
    big = replica(max_bytes=2 * MOST)
    fill(big, range(writers), 3 * MOST // 170 // writers)
    snapshot = Snapshot(Header(dict(big.vector), [], list(range(BUCKETS))), 3 * MOST)
    for piece in pieces(big.all_entries()):
        snapshot.add_untrusted(piece)
    one = replica(1, max_bytes=MOST)
    began = time.thread_time()
    assert longest(snapshot.merge(one, ())) < MOST_HELD
    assert time.thread_time() - began < 5
    assert MOST < one.size <= 2 * MOST


def hot(one: Replica, count: int) -> None:
    """Have all entries in one bucket."""
    dots = (dot_of(writer, number) for number in range(1, 10**9) for writer in range(WRITERS))
    chosen = (dot for dot in dots if bucket_of(dot) == 7)
    by_writer: dict[int, list[int]] = {}
    for _ in range(count):
        dot = next(chosen)
        by_writer.setdefault(dot % WRITERS, []).append(dot // WRITERS)
    for writer, numbers in by_writer.items():
        for at in range(0, len(numbers), AT_A_TIME):
            some = numbers[at : at + AT_A_TIME]
            first = one.vector.get(writer, 0) + 1
            added = [Entry(dot_of(writer, n), VALUE, "", "", f"{writer}.{n}", b"\x01") for n in some]
            assert one.apply(Edit(writer, first, some[-1] - first + 1, {}, added, []))


def test_entries_that_are_all_in_one_bucket_hold_nobody_up() -> None:
    one = replica(max_bytes=MOST)
    hot(one, 60_000)
    assert sum(map(bool, one.contents.buckets)) == 1
    assert longest(one.refresh()) < MOST_HELD
    two = replica(1, max_bytes=MOST)
    assert longest(merging(one, two)) < MOST_HELD
    assert one.digest() == two.digest()


def test_a_bucket_that_is_named_many_times_costs_no_more() -> None:
    one = replica(max_bytes=MOST)
    hot(one, 20_000)
    there = one.digest()
    snapshot = Snapshot(Header(dict(one.vector), [], [7] * BUCKETS), MOST)
    for piece in pieces(one.all_entries()):
        snapshot.add_untrusted(piece)
    assert longest(snapshot.merge(one, ())) < MOST_HELD
    assert one.digest() == there
    began = time.thread_time()
    absorb(one, dict(one.vector), [7] * BUCKETS, {})
    assert (time.thread_time() - began) < 2
    assert not one.size


@pytest.mark.parametrize("kind", ["value", "set"])
def test_who_writes_first_while_it_merges_a_long_comparison_loses_nothing(kind: str) -> None:
    """The number that it draws is used by one whose writes it merges at that time."""
    other = with_number(1, 9)
    values = SharedMap(other, "")
    for number in range(3 * AT_A_TIME):
        values[f"k{number}"] = 1
    one = replica(2, claimed=[number for number in range(WRITERS) if number != 9])
    steps = merging(other, one)
    next(steps)
    if kind == "value":
        SharedMap(one, "")["mine"] = "precious"
    else:
        SharedSet(one, "", "mine").add("precious")
    for _ in steps:
        pass
    agree(one, other)
    if kind == "value":
        assert SharedMap(one, "").get("mine") == "precious"
    else:
        assert "precious" in SharedSet(one, "", "mine")
    assert one.writer != 9


def test_what_removes_without_a_write_is_removed_everywhere() -> None:
    replicas = [replica(seed) for seed in range(4)]
    SharedMap(replicas[0], "").update({f"k{number}": number for number in range(50)})
    for edit in replicas[0].pop_edits():
        for each in replicas[1:]:
            each.apply(read_edit_untrusted(encode(edit)))
    rng = random.Random(1)
    for each in replicas:
        dots = [entry.dot for entry in each.all_entries()]
        for first, count in ((0, 0), (5, 0), (2**40, 0)):
            edit = Edit(rng.randrange(WRITERS), first, count, {}, [], rng.sample(dots, 5))
            each.apply(read_edit_untrusted(encode(edit)))
    agree(*replicas)


@pytest.mark.parametrize("seed", range(6))
def test_replicas_that_take_steps_between_each_other_are_equal(seed: int) -> None:
    """Long comparisons, of which each step comes between writes, edits and forged ones."""
    rng = random.Random(seed)
    replicas = [replica(number + 10 * seed, max_bytes=4_000_000) for number in range(3)]
    for one in replicas:
        SharedMap(one, "").update({f"{id(one)} {number}": number for number in range(2500)})
    running: list[tuple[int, Any]] = []
    for _ in range(300):
        at = rng.randrange(3)
        one = replicas[at]
        match rng.randrange(5):
            case 0:
                SharedMap(one, "")[rng.choice("abc")] = rng.randrange(9)
            case 1:
                place = SharedSet(one, "", "s")
                (place.add if rng.random() < 0.5 else place.discard)(rng.randrange(3))
            case 2 if not any(where == at for where, _ in running):
                running.append((at, merging(replicas[rng.randrange(3)], one)))
            case 3:
                writer = rng.choice([max(each.writer, 0) for each in replicas])
                number = one.vector.get(writer, 0) + 1
                entry = Entry(dot_of(writer, number), SET, "", "s", str(rng.randrange(3)), b"")
                one.apply(Edit(writer, number, 1, {}, [entry], rng.sample([e.dot for e in one.all_entries()], 2)))
            case _:
                for edit in one.pop_edits():
                    for other in replicas:
                        if other is not one:
                            other.apply(edit)
        for pair in list(running):
            if rng.random() < 0.5 and next(pair[1], "ended") == "ended":
                running.remove(pair)
    for _, steps in running:
        for _ in steps:
            pass
    agree(*replicas)
    newcomer = replica(99, max_bytes=4_000_000)
    give(replicas[0], newcomer)
    assert content(newcomer) == content(replicas[0])


def test_pieces_of_anything_are_refused_or_read() -> None:
    rng = random.Random(3)
    one = replica()
    SharedMap(one, "").update({f"k{number}": [number, {"a": [b"x"]}] for number in range(40)})
    (piece,) = pieces(one.all_entries())
    most: dict[int, int] = dict.fromkeys(range(WRITERS), 2**52)
    refused = 0
    for _ in range(5000):
        changed = bytearray(piece)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        snapshot = Snapshot(Header(dict(most), [], list(range(BUCKETS))), 10**6)
        try:
            snapshot.add_untrusted(bytes(changed))
        except RemoteProtocolError:
            refused += 1
            continue
        two = replica(5)
        for _ in snapshot.merge(two, ()):
            pass
        assert len(content(two)) <= 41
    assert 100 < refused < 4900
