"""Messages that are encoded already: they go out at once and alone, or not at all."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel.errors import NotSent
from iris.kernel.link.link import Link
from iris.kernel.wire.codec import encode_batch
from tests.support.links import NODE, SMALL, PlainSession, Way, check, open_link
from tests.support.messages import array


def batch(number: int) -> bytes:
    return bytes(encode_batch([array(1, number)]))


async def test_on_a_quiet_link_it_leaves_at_once(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(3):
            await trio.sleep(1)
            assert link.send_alone(batch(number), 10)
            assert way.batches[-1] == [(1, number)]
        check(link, 3)


async def test_too_soon_after_another_a_small_one_is_for_a_batch_and_a_large_one_is_not(
    autojump_clock: MockClock,
) -> None:
    way = Way()
    async with open_link(way=way) as link:
        await trio.sleep(1)
        assert link.send_alone(batch(0), 10)
        assert not link.send_alone(batch(1), 10)
        assert link.send_alone(batch(2), SMALL.batch_bytes)
        assert way.batches == [[(1, 0)], [(1, 2)]]
        check(link, 2)


async def test_what_waits_goes_first(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        link.post(array(1, 0), 10)
        await trio.sleep(1)
        link.post(array(1, 1), 10)
        link.post(array(1, 2), 10)
        assert not link.send_alone(batch(3), SMALL.batch_bytes)
        await wait_all_tasks_blocked()
        assert way.messages == [(1, 0), (1, 1), (1, 2)]
        check(link, 3)


async def test_one_that_the_transport_does_not_take_waits_and_goes_first(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        await trio.sleep(1)
        way.room = 0
        assert link.send_alone(batch(0), 10)
        link.post(array(1, 1), 10)
        assert not link.send_alone(batch(2), SMALL.batch_bytes)
        await wait_all_tasks_blocked()
        assert way.frames == []
        way.make_room(2)
        await wait_all_tasks_blocked()
        assert way.messages == [(1, 0), (1, 1)]
        check(link, 2)


@pytest.mark.parametrize("what", ["no session", "no connection", "ended"])
async def test_where_nothing_can_leave_it_is_not_taken(what: str) -> None:
    link, way = Link(NODE, SMALL), Way()
    if what != "no session":
        link.use(PlainSession())
    if what != "no connection":
        link.attach(way)
    if what == "ended":
        link.close("over")
    assert not link.send_alone(batch(0), 10)
    assert link.statistics().posted == 0


async def test_one_that_waits_its_turn_goes_as_it_is_between_those_before_and_after(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link:
        link.post(array(1, 0), 10)
        await wait_all_tasks_blocked()
        link.post(array(1, 1), 10)
        link.post_encoded(batch(2), 400)
        link.post_encoded(batch(3), 400)
        link.post(array(1, 4), 10)
        assert link.waiting_bytes == 4 * 32 + 820
        check(link, 5)
        way.make_room(9)
        await wait_all_tasks_blocked()
        assert way.batches == [[(1, 0)], [(1, 1)], [(1, 2)], [(1, 3)], [(1, 4)]]
        assert link.waiting_bytes == 0
        check(link, 5)


async def test_one_that_finds_nothing_waiting_leaves_at_once(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        await trio.sleep(1)
        link.post_encoded(batch(0), 400)
        assert not link.is_stalled(0.5)
        await wait_all_tasks_blocked()
        assert way.messages == [(1, 0)]
        assert link.is_idle


async def test_those_that_wait_are_bounded_and_counted_as_lost_with_the_link(autojump_clock: MockClock) -> None:
    async with open_link(way=Way(room=0)) as link:
        taken = SMALL.link_bytes // 532
        for number in range(taken):
            link.post_encoded(batch(number), 500)
        with pytest.raises(NotSent, match="the limit is 10000"):
            link.post_encoded(batch(taken), 500)
        check(link, taken)
        assert link.close("over") == taken
        with pytest.raises(NotSent, match="over"):
            link.post_encoded(batch(0), 500)
        statistics = link.statistics()
        assert (statistics.lost, statistics.refused) == (taken, 2)
