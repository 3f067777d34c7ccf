"""A user's queue of changes: in order, complete, and bounded with a count of what is lost."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.cluster.membership.roster import Change, ChangeKind, Member, Watch, WatchedChanges
from iris.kernel.names import NodeId

LIMIT = 65_536


def open_watch(present: list[Change]) -> tuple[Watch, WatchedChanges]:
    changes = WatchedChanges("a", present)
    return Watch(changes), changes


def change(number: int, kind: ChangeKind = "joined") -> Change:
    member = Member(node=NodeId(f"{number:032x}"), speaks_for="a", site="", addresses=(), status="alive")
    return Change(kind=kind, cluster="a", member=member)


async def take(watch: Watch, number: int) -> list[Change]:
    return [await anext(watch) for _ in range(number)]


async def test_those_present_come_first_and_changes_in_their_order() -> None:
    watch, changes = open_watch([change(1), change(2)])
    changes.add(change(3))
    changes.add(change(1, "left"))
    assert await take(watch, 4) == [change(1), change(2), change(3), change(1, "left")]
    assert (watch.cluster, watch.missed) == ("a", 0)


async def test_a_reader_waits_for_the_next_change(autojump_clock: MockClock) -> None:
    watch, changes = open_watch([])
    taken: list[Change] = []

    async def read() -> None:
        taken.extend(await take(watch, 2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        for number in (1, 2):
            await wait_all_tasks_blocked()
            assert taken == []
            changes.add(change(number))
    assert taken == [change(1), change(2)]


async def test_a_cancelled_wait_takes_nothing(autojump_clock: MockClock) -> None:
    watch, changes = open_watch([])
    for number in range(3):
        with trio.move_on_after(1) as scope:
            await anext(watch)
        assert scope.cancelled_caught
        changes.add(change(number))
        assert await anext(watch) == change(number)


async def test_a_change_that_comes_in_the_moment_of_cancelling_stays() -> None:
    watch, changes = open_watch([])
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, watch)
            await wait_all_tasks_blocked()
            scope.cancel()
            changes.add(change(1))
    assert [repr(watch), await anext(watch)] == ["<Watch of a: 1 changes waiting>", change(1)]


@pytest.mark.parametrize("beyond", [0, 1, 10])
async def test_a_reader_that_is_too_slow_loses_the_oldest_and_is_told_how_many(beyond: int) -> None:
    watch, changes = open_watch([change(0)])
    for number in range(1, LIMIT + beyond):
        changes.add(change(number))
    assert watch.missed == beyond
    assert await anext(watch) == change(beyond)
    changes.add(change(LIMIT + beyond))
    assert watch.missed == beyond


async def test_those_present_beyond_the_limit_are_counted_as_missed() -> None:
    watch, _ = open_watch([change(number) for number in range(LIMIT + 3)])
    assert watch.missed == 3
    assert await anext(watch) == change(3)


async def test_a_reader_that_always_finds_changes_lets_others_run_and_can_be_cancelled() -> None:
    watch, _ = open_watch([change(number) for number in range(3)])
    with trio.CancelScope() as scope:
        scope.cancel()
        await anext(watch)
    assert scope.cancelled_caught
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await take(watch, 3) == [change(number) for number in range(3)], "the cancelled wait took a change"
        assert ran == ["other"]


async def test_it_ends_with_its_node_and_what_waits_comes_first() -> None:
    watch, changes = open_watch([change(1)])
    changes.end()
    assert [found.member.node async for found in watch] == [change(1).member.node]
    changes.add(change(2))
    assert [found.member.node async for found in watch] == [change(2).member.node]
