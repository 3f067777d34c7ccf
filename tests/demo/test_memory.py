"""The demo's measurement of memory."""

from __future__ import annotations

import os
import sys

import pytest

from iris.demo.processes import PeakMemory, ProcessEntry, parse_stat, read_table

PAGE = os.sysconf("SC_PAGE_SIZE")


def stat(name: str = "python", state: str = "S", session: int = 40, pages: int = 7) -> str:
    fields = ["42", f"({name})", state, "1", "41", str(session), *["0"] * 17, str(pages), *["0"] * 28]
    return " ".join(fields)


@pytest.mark.parametrize("name", ["python", "a b", "a) S 1 2 3 (b", ")", "("])
def test_a_name_cannot_shift_the_fields(name: str) -> None:
    assert parse_stat(stat(name)) == ProcessEntry(42, 40, 7 * PAGE, is_dead=False)


@pytest.mark.parametrize(("state", "is_dead"), [("R", False), ("S", False), ("D", False), ("Z", True), ("X", True)])
def test_the_dead_are_told_apart(state: str, is_dead: bool) -> None:
    assert parse_stat(stat(state=state)).is_dead == is_dead


def test_the_peak_is_the_highest_sum_over_the_sessions_and_this_process() -> None:
    memory = PeakMemory()
    own = ProcessEntry(os.getpid(), 1, 100, is_dead=False)
    memory.look([own, ProcessEntry(2, 7, 10, is_dead=False), ProcessEntry(3, 7, 20, is_dead=False)], [7])
    memory.look([own, ProcessEntry(2, 7, 40, is_dead=False), ProcessEntry(3, 8, 900, is_dead=False)], [7])
    assert memory.peak == 140
    memory.look([own], [7])
    assert memory.peak == 140


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this /proc")
def test_this_process_is_in_the_table() -> None:
    (own,) = (entry for entry in read_table() if entry.pid == os.getpid())
    assert own.session == os.getsid(0)
    assert 2**22 < own.resident < 2**40
    assert not own.is_dead
