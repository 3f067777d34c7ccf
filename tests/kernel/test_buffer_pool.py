"""Memory for the bodies of large frames."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iris.kernel import buffer_pool
from iris.kernel.buffer_pool import borrow, give_back, is_sparse, pooled_bytes
from iris.kernel.config import KIB

KEPT = 4


@pytest.fixture(autouse=True)
def none_free() -> Iterator[None]:
    """All pieces that were free are in use."""
    pieces = [borrow(40_000) for _ in range(KEPT)]
    yield
    del pieces


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


def test_what_is_kept_while_nobody_uses_it_is_counted() -> None:
    before = pooled_bytes()
    room = borrow(40_000)
    give_back(room)
    assert (before, pooled_bytes()) == (0, 384 * KIB)


def test_a_buffer_is_sparse_for_a_frame_that_goes_into_it_four_times() -> None:
    assert [is_sparse(borrow(size)) for size in (40_000, 98_304, 98_305, 1 << 20)] == [True, True, False, False]
    assert not is_sparse(bytes(40_000))


class Taken(list[bytearray]):
    """Has one until it is asked for it: another thread was faster."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 1


def test_one_that_another_thread_takes_meanwhile_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "_free", Taken())
    assert len(borrow(40_000)) == 40_000


def test_what_is_very_large_has_memory_of_its_own() -> None:
    large = borrow(2**20)
    assert len(large) == 2**20
    give_back(large)
    assert borrow(2**20).obj is not large.obj
    assert borrow(40_000).obj is not large.obj


def test_no_more_is_kept_than_is_used_at_one_time() -> None:
    rooms = [borrow(40_000) for _ in range(100)]
    for room in rooms:
        give_back(room)
    former = [room.obj for room in rooms]
    again = [borrow(40_000) for _ in range(100)]
    assert sum(any(room.obj is one for one in former) for room in again) == KEPT


def test_memory_of_others_is_not_kept() -> None:
    others = [memoryview(bytes(384 * KIB)), memoryview(bytearray(100))]
    for room in others:
        give_back(room)
    assert all(borrow(40_000).obj is not room.obj for room in others)
