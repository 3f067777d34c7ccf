"""Memory for the bodies of large frames."""

from __future__ import annotations

import pytest

from iris.kernel import buffer_pool as scratch
from iris.kernel.buffer_pool import borrow, give_back


@pytest.fixture(autouse=True)
def none_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_free", [])


def test_what_was_given_back_is_used_again_and_nothing_else() -> None:
    one, two = borrow(40_000), borrow(262_400)
    assert [len(one), len(two)] == [40_000, 262_400]
    assert one.obj is not two.obj
    give_back(one)
    three = borrow(50_000)
    assert three.obj is one.obj
    assert len(three) == 50_000
    four = borrow(50_000)
    assert four.obj is not one.obj
    assert four.obj is not two.obj


class Taken(list[bytearray]):
    """Has one until it is asked for it: another thread was faster."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 1


def test_one_that_another_thread_takes_meanwhile_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_free", Taken())
    assert len(borrow(40_000)) == 40_000


def test_what_is_very_large_has_memory_of_its_own() -> None:
    large = borrow(2**20)
    assert len(large) == 2**20
    give_back(large)
    assert borrow(2**20).obj is not large.obj
    assert scratch._free == []


def test_no_more_is_kept_than_is_used_at_one_time() -> None:
    for room in [borrow(40_000) for _ in range(100)]:
        give_back(room)
    assert len(scratch._free) == scratch._KEPT


def test_memory_of_others_is_not_kept() -> None:
    give_back(memoryview(bytes(scratch._SIZE)))
    give_back(memoryview(bytearray(100)))
    assert scratch._free == []
