"""Schedules are data: drawn from a seed, saved, read back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import iris
from iris.testing.faults import CHAOS, Crash, Fault, Partition, Schedule, describe


def drawn(seed: int, count: int = 300) -> list[Fault]:
    chance = random.Random(seed)
    faults = [CHAOS.draw(chance, 1.0, ("a", "b", "test"), ()) for _ in range(count)]
    return [fault for fault in faults if fault is not None]


def test_a_schedule_is_read_as_it_was_saved(tmp_path: Path) -> None:
    schedule = Schedule(seed=3, seconds=600.0, faults=tuple(drawn(3)))
    schedule.save(tmp_path / "schedule.json")
    assert Schedule.load(tmp_path / "schedule.json") == schedule


def test_all_kinds_are_drawn_and_none_for_the_tests_own_host() -> None:
    faults = drawn(1)
    assert {type(fault) for fault in faults} == set(CHAOS.kinds)
    assert "test" not in {fault.host for fault in faults if isinstance(fault, Crash)}
    assert {fault.one_way for fault in faults if isinstance(fault, Partition)} == {True, False}


def test_a_host_that_has_a_fault_gets_no_second_one() -> None:
    chance = random.Random(0)
    hosts = [CHAOS.draw(chance, 1.0, ("a", "b", "test"), ("a",)) for _ in range(100)]
    assert {fault.host for fault in hosts if isinstance(fault, Crash)} == {"b"}


def test_a_file_that_holds_no_schedule_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"seed": 1}')
    with pytest.raises(iris.ConfigError, match=r"x\.json is no schedule of faults: .*seconds"):
        Schedule.load(tmp_path / "x.json")
    with pytest.raises(iris.ConfigError, match=r"y\.json is no schedule of faults"):
        Schedule.load(tmp_path / "y.json")


def test_a_fault_is_described_in_one_line() -> None:
    assert describe(Crash(at=1, lasting=2.5, host="a", power=True)) == "Crash a for 2.5 s power"
    assert describe(Partition(at=1, lasting=2, near=("a",), far=("b", "c"))) == "Partition a | b c for 2 s"
