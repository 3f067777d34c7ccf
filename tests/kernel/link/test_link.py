"""The link: batches, order, and what waits."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel.config import Config
from iris.kernel.errors import NotSent
from iris.kernel.link.link import Link
from iris.kernel.link.run import OpenRun
from tests.support.links import NODE, SMALL, PlainSession, Way, check, fill, open_link
from tests.support.messages import array
from tests.support.subscriptions import Ticking

# -- batching ----------------------------------------------------------------------------------------------


async def test_what_is_posted_in_one_round_leaves_as_one_frame(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(5):
            link.post(array(1, number), 10)
        await wait_all_tasks_blocked()
        link.post(array(1, 5), 10)
        await wait_all_tasks_blocked()
        assert way.batches == [[(1, number) for number in range(5)], [(1, 5)]]
        check(link, 6)


async def test_a_lone_message_leaves_within_post(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(3):
            await trio.sleep(1)
            link.post(array(1, number), 10)
            assert way.messages[-1] == (1, number)
        link.post(array(1, 3), 10)
        assert len(way.frames) == 3  # it came too soon after the one before


async def test_of_bursts_that_grow_each_is_one_frame(autojump_clock: MockClock) -> None:
    """Only of the first one the first message leaves by itself: nobody can know that others follow it."""
    way = Way()
    async with open_link(way=way) as link:
        for burst in range(4):
            await trio.sleep(1)
            link.post(array(1, burst), 10)  # leaves within post, if the last frame was not a burst
            growing = OpenRun(100)
            link.post(array(2, burst), 10, growing=growing)
            growing.grown = 50
        await trio.sleep(1)
        assert [len(batch) for batch in way.batches] == [1, 1, 2, 2, 2]
        link.post(array(3), 10)
        assert len(way.frames) == 5
        await trio.sleep(1)
        link.post(array(4), 10)
        assert way.messages[-1] == (4,), "the last frame was a lone message again"


async def test_a_message_that_has_grown_was_not_alone(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        await trio.sleep(1)
        link.post(array(1, 0), 10)
        for burst in range(1, 4):
            growing = OpenRun(100)
            link.post(array(1, burst), 10, growing=growing)
            assert growing.is_open, "it waits for what follows"
            growing.grown = 50
            await trio.sleep(1)
        assert [len(batch) for batch in way.batches] == [1] * 4


@pytest.mark.parametrize(("flush", "frames"), [(False, [1, 99]), (True, [1] * 100)])
def test_one_who_posts_without_a_pause_does_not_make_a_frame_of_each_message(flush: bool, frames: list[int]) -> None:
    """However long the sending takes: here every look at the clock is 100 us later than the one before."""

    async def main() -> None:
        way = Way()
        async with open_link(Config(), way) as link:
            for number in range(100):
                link.post(array(1, number), 1, flush=flush)
            await wait_all_tasks_blocked()
            assert [len(batch) for batch in way.batches] == frames
            assert way.messages == [(1, number) for number in range(100)]
            for number in range(2):
                link.post(array(2, number), 1)
                await wait_all_tasks_blocked()
            link.post(array(2, 2), 1)
            assert way.messages[-1] == (2, 2), "a lone one leaves at once again"

    trio.run(main, clock=Ticking())


async def test_a_link_that_is_busy_batches_again_at_once(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(3):
            link.post(array(1, number), 10)
        await trio.sleep(1)
        link.post(array(1, 3), 10)  # the frame before it carried several
        link.post(array(1, 4), 10)
        await wait_all_tasks_blocked()
        assert way.batches == [[(1, 0), (1, 1), (1, 2)], [(1, 3), (1, 4)]]


async def test_a_message_grows_until_it_is_encoded(autojump_clock: MockClock) -> None:
    async with open_link(way=Way()) as link:
        growing = OpenRun(100)
        link.post(array(1), 0, growing=growing)
        assert growing.is_open
        await trio.sleep(1)
        assert not growing.is_open


async def test_a_message_grows_until_another_one_does(autojump_clock: MockClock) -> None:
    async with open_link(way=Way()) as link:
        first, second = OpenRun(100), OpenRun(100)
        link.post(array(1), 0, growing=first)
        first.grown = 50
        link.post(array(2), 0, growing=second)
        assert (first.is_open, second.is_open) == (False, True)
        second.grown = 20
        assert link.waiting_bytes == 50 + 20 + 2 * 32


async def test_a_link_that_ends_lets_nothing_grow(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        growing = OpenRun(100)
        link.post(array(1), 0, growing=growing)
        assert link.close("over") == 1
        assert not growing.is_open


async def test_a_full_batch_leaves_without_waiting_for_the_scheduler(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(100):
            link.post(array(1, number), 100)
        assert len(way.frames) > 10
        await wait_all_tasks_blocked()
        assert way.messages == [(1, number) for number in range(100)]
        check(link, 100)


async def test_a_batch_never_exceeds_its_size_but_for_one_large_message(autojump_clock: MockClock) -> None:
    way = Way()
    chance = random.Random(1)
    async with open_link(way=way) as link:
        sent: list[Any] = []
        for _ in range(200):
            message = array(1, bytes(chance.choice((0, 1, 300, 999))))
            sent.append(message)
            link.post(message, len(message[1]))
            if chance.random() < 0.2:
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert way.messages == sent
        for batch, frame in zip(way.batches, way.frames, strict=True):
            assert len(frame) <= 1000 or len(batch) == 1


async def test_a_message_may_grow_by_what_its_batch_has_room_for(autojump_clock: MockClock) -> None:
    async with open_link(way=Way()) as link:
        link.post(array(1), 200)
        roomy, cramped = OpenRun(500), OpenRun(5000)
        link.post(array(2), 100, growing=roomy)
        link.post(array(3), 100, growing=cramped)
        assert roomy.room == 500
        assert cramped.room == 1000 - 400 - 3 * 32


async def test_what_has_grown_counts_towards_the_batch(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        payloads = [b"a"]
        growing = OpenRun(1000)
        link.post(array(1, payloads), 1, growing=growing)
        payloads.append(b"b")
        growing.grown = 900
        link.post(array(2), 100)  # does not fit: the batch before it leaves
        assert way.messages == [(1, (b"a", b"b"))]
        assert not growing.is_open
        await wait_all_tasks_blocked()
        check(link, 2)


# -- bounds ------------------------------------------------------------------------------------------------


async def test_a_full_link_refuses_and_says_how_full_it_is(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        posted = fill(link, 500)
        assert posted == 10_000 // 532
        with pytest.raises(NotSent, match="10000"):
            link.post(array(1, b""), 500)
        assert link.statistics().refused == 2
        check(link, posted)


async def test_a_full_link_has_a_reserve_for_what_keeps_nodes_in_agreement(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        fill(link, 500)
        for _ in range(10):
            link.post(array(1), 500, 5320)
        with pytest.raises(NotSent):
            link.post(array(1), 500, 5320)
        with pytest.raises(NotSent):
            link.post(array(1), 0)


async def test_empty_messages_are_bounded_too(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        posted = fill(link, 0)
        assert posted == 10_000 // 32
        check(link, posted)


async def test_whoever_waits_for_room_goes_on_at_half(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link, trio.open_nursery() as nursery:
        for _ in range(15):
            link.post(array(1), 500)
        assert not link.has_room()
        released = False

        async def wait() -> None:
            nonlocal released
            await link.wait_room()
            released = True

        nursery.start_soon(wait)
        while not released:
            assert link.waiting_bytes >= SMALL.link_bytes // 2
            way.make_room(1)
            await wait_all_tasks_blocked()
        assert link.has_room()


async def test_a_cancelled_wait_for_room_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        for _ in range(15):
            link.post(array(1), 500)
        with trio.move_on_after(1) as scope:
            await link.wait_room()
        assert scope.cancelled_caught
        check(link, 15)


async def test_a_link_is_stalled_when_messages_wait_and_nothing_moves(autojump_clock: MockClock) -> None:
    way = Way(room=1)
    async with open_link(way=way) as link:
        await trio.sleep(100)
        link.post(array(1), 0)
        assert not link.is_stalled(0.25)  # it has only just been asked to do something
        await wait_all_tasks_blocked()
        await trio.sleep(100)
        assert not link.is_stalled(0.25)  # nothing waits
        for _ in range(3):
            link.post(array(1), 900)
        await trio.sleep(0.2)
        assert not link.is_stalled(0.25)
        await trio.sleep(0.1)
        assert link.is_stalled(0.25)
        way.make_room(1)
        await wait_all_tasks_blocked()
        assert not link.is_stalled(0.25)


# -- connections, sessions, the end ------------------------------------------------------------------------


async def test_messages_wait_for_a_connection_and_a_session(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link() as link:
        link.post(array(1), 0)
        await wait_all_tasks_blocked()
        link.attach(way)
        await wait_all_tasks_blocked()
        assert not way.frames
        assert not link.is_up
        link.use(PlainSession())
        await wait_all_tasks_blocked()
        assert link.is_up
        assert way.messages == [(1,)]


async def test_a_connection_that_is_lost_costs_no_message_that_it_had_not_taken(autojump_clock: MockClock) -> None:
    first, second = Way(room=2), Way()
    async with open_link(way=first) as link:
        for number in range(20):
            link.post(array(1, number), 400)
        await wait_all_tasks_blocked()
        link.detach()
        assert first.closed
        check(link, 20)
        link.attach(second)
        await wait_all_tasks_blocked()
        assert [*first.messages, *second.messages] == [(1, number) for number in range(20)]
        check(link, 20)


async def test_a_connection_that_closes_by_itself_is_given_up(autojump_clock: MockClock) -> None:
    first, second = Way(room=1), Way()
    async with open_link(way=first) as link:
        for number in range(5):
            link.post(array(1, number), 400)
        await wait_all_tasks_blocked()
        first.close()
        await wait_all_tasks_blocked()
        assert link.outgoing is None
        link.attach(second)
        await wait_all_tasks_blocked()
        assert [*first.messages, *second.messages] == [(1, number) for number in range(5)]


async def test_messages_that_somebody_waits_for_leave_in_parts(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        link.post(array(0, b""), 0)
        link.post(array(0, b""), 0)
        await wait_all_tasks_blocked()
        for number in range(40):
            link.post(array(1, number), 0, flush=True)
        assert [len(batch) for batch in way.batches[1:]] == [16, 16]
        await wait_all_tasks_blocked()
        assert [message for batch in way.batches[1:] for message in batch] == [(1, number) for number in range(40)]
        check(link, 42)


async def test_what_is_posted_after_a_cut_travels_in_another_frame() -> None:
    link = Link(NODE, SMALL)
    assert link.end_batch() == 0
    link.post(array(1, "a"), 1)
    assert link.end_batch() == 1
    assert link.end_batch() == 1
    link.post(array(1, "b"), 1)
    link.post(array(1, "c"), 1)
    assert link.end_batch() == 2
    link.post(array(1, "d"), 1)
    way = Way()
    link.use(PlainSession())
    link.attach(way)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await wait_all_tasks_blocked()
        assert way.batches == [[(1, "a")], [(1, "b"), (1, "c")], [(1, "d")]]
        assert link.end_batch() == 3
        nursery.cancel_scope.cancel()


class Failures:
    """The owner of a link, and what it was told."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def link_failed(self, link: Link, error: Exception) -> None:
        self.errors.append(error)


# -- what cannot be encoded --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
async def test_messages_that_cannot_be_encoded_are_lost_and_those_behind_them_leave(
    autojump_clock: MockClock, count: int
) -> None:
    way = Way()
    failures = Failures()
    async with open_link(way=way, owner=failures) as link:
        for _ in range(count):
            link.post(array(1, 2**64), 10)
        await wait_all_tasks_blocked()
        link.post(array(1, 7), 10)
        await wait_all_tasks_blocked()
        assert way.messages == [(1, 7)]
        assert [type(error) for error in failures.errors] == [OverflowError]
        statistics = link.statistics()
        assert (statistics.posted, statistics.sent, statistics.lost, statistics.waiting) == (count + 1, 1, count, 0)


async def test_one_that_somebody_waits_for_and_cannot_be_encoded_is_lost_as_well(autojump_clock: MockClock) -> None:
    way = Way()
    failures = Failures()
    async with open_link(way=way, owner=failures) as link:
        await trio.sleep(1)
        link.post(array(1, 2**64), 10, flush=True)
        link.post(array(1, 7), 10, flush=True)
        await wait_all_tasks_blocked()
        assert way.messages == [(1, 7)]
        assert len(failures.errors) == 1
        assert link.statistics().lost == 1
