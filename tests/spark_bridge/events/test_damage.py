"""Damage is known by stretches: none twice, none forgotten, those that touch are one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iris.spark_bridge.events.damage import Damage, DamageBook

STRETCHES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=12)


def book(stretches: list[tuple[int, int]]) -> DamageBook:
    made = DamageBook()
    for offset, size in stretches:
        made.note(Damage(shard=0, offset=offset, end=offset + size, reason="r"))
    return made


@given(STRETCHES, st.integers(0, 50), st.integers(0, 50))
def test_it_knows_the_union_of_what_was_noted(stretches: list[tuple[int, int]], start: int, end: int) -> None:
    made, known = DamageBook(), set[int]()
    for offset, size in stretches:
        new = set(range(offset, offset + size))
        assert made.note(Damage(shard=0, offset=offset, end=offset + size, reason="r")) == bool(new - known)
        known |= new
    assert {at for damage in made for at in range(damage.offset, damage.end)} == known
    assert made.events == len(known)
    assert made.last(0) == max(known, default=-1)
    within = [at for damage in made.between(0, start, end) for at in range(damage.offset, damage.end)]
    assert within == sorted(known.intersection(range(start, end)))
    ends = [damage.end for damage in made]
    assert not {damage.offset for damage in made}.intersection(ends), "stretches that touch are one"


@given(STRETCHES, st.integers(0, 50))
def test_what_is_removed_from_the_log_is_not_damaged_any_more(stretches: list[tuple[int, int]], before: int) -> None:
    made = book(stretches)
    left = {at for damage in made for at in range(damage.offset, damage.end) if at >= before}
    made.trim(0, before)
    assert {at for damage in made for at in range(damage.offset, damage.end)} == left


def test_a_stretch_is_described() -> None:
    damage = Damage(shard=0, offset=7, end=8, reason="the checksum does not fit")
    assert damage.describe("0@ab") == "event 7 of shard 0@ab cannot be read: the checksum does not fit"
    longer = Damage(shard=0, offset=7, end=9, reason="so it is")
    assert longer.describe("0@ab") == "events 7 to 8 of shard 0@ab cannot be read: so it is"


def test_a_log_that_is_damaged_everywhere_costs_bounded_memory() -> None:
    made = book([(2 * at, 1) for at in range(12_000)])
    assert len(list(made)) == 10_000
    assert not made.note(Damage(shard=0, offset=0, end=1, reason="r"))
