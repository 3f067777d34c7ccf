"""The link: limits, ends, and whatever comes in any order."""

from __future__ import annotations

from collections import deque

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel.config import KIB, Config
from iris.kernel.errors import NotSent
from iris.kernel.link.link import Link
from iris.kernel.link.run import OpenRun
from iris.kernel.wire.codec import MAX_CARRIED, MAX_MESSAGES
from tests.support.links import NODE, SMALL, Bulk, PlainSession, Way, check, open_link, steps
from tests.support.messages import array, arrays
from tests.support.scheduling import seed_scheduler


async def test_a_new_session_seals_what_was_not_sealed_yet(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link:
        for number in range(6):
            link.post(array(1, number), 400)
        await wait_all_tasks_blocked()
        link.use(PlainSession(b"T"))
        way.make_room(10)
        await wait_all_tasks_blocked()
        assert [frame[:1] for frame in way.frames] == [b"S", b"T", b"T"]
        assert way.messages == [(1, number) for number in range(6)]


async def test_another_connection_takes_the_place_of_the_first(autojump_clock: MockClock) -> None:
    first, second = Way(), Way()
    async with open_link(way=first) as link:
        link.attach(second)
        link.post(array(1), 0)
        await wait_all_tasks_blocked()
        assert first.closed
        assert second.messages == [(1,)]


async def test_closing_counts_what_waits_as_lost_and_refuses_the_rest(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link:
        for number in range(10):
            link.post(array(1, number), 400)
        await wait_all_tasks_blocked()
        assert link.close("the peer is gone") == 10
        assert link.close("again") == 0
        assert way.closed
        check(link, 10)
        assert link.statistics().lost == 10
        with pytest.raises(NotSent, match="the peer is gone"):
            link.post(array(1), 0)
        await link.wait_room()


async def test_a_link_that_has_ended_closes_what_it_is_given(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link() as link:
        link.close("over")
        link.attach(way)
        assert way.closed


async def test_closing_ends_the_flusher_and_whoever_waits(autojump_clock: MockClock) -> None:
    link = Link(NODE, SMALL)
    for _ in range(15):
        link.post(array(1), 500)
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(link.wait_room)
            await wait_all_tasks_blocked()
            link.close("over")


async def test_what_a_frame_brings_about_in_this_node_goes_out_once_and_in_order(autojump_clock: MockClock) -> None:
    """The way to oneself delivers within ``send_nowait``, and handlers answer over the same link."""
    answered: list[int] = []

    def answer(frame: bytes) -> None:
        for message in arrays(frame[1:]):
            if message[0] == 1:
                answered.append(message[1])
                link.post(array(2, message[1]), 700)

    way = Way(taken=answer)
    async with open_link(Config(batch_bytes=1000), way) as link:
        for number in range(50):
            link.post(array(1, number), 300)
        await wait_all_tasks_blocked()
        assert answered == list(range(50))
        assert [message[1] for message in way.messages if message[0] == 2] == list(range(50))
        assert link.statistics().sent == 100


async def test_a_link_may_end_by_what_its_own_frame_brings_about(autojump_clock: MockClock) -> None:
    def end(_: bytes) -> None:
        link.close("enough")

    way = Way(taken=end)
    async with open_link(way=way) as link:
        link.post(array(1), 0)
        await wait_all_tasks_blocked()
        assert "enough" in repr(link)


async def test_an_inserted_frame_goes_ahead_of_everything_not_sealed(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link:
        for number in range(6):
            link.post(array(1, number), 400)
        await wait_all_tasks_blocked()
        link.send_control(b"Hello")
        link.use(PlainSession(b"T"))
        way.make_room(10)
        await wait_all_tasks_blocked()
        assert [frame[:1] for frame in way.frames] == [b"S", b"H", b"T", b"T"]
        check(link, 6)


async def test_an_inserted_frame_is_for_one_connection_only(autojump_clock: MockClock) -> None:
    first, second, third = Way(room=0), Way(room=0), Way()
    async with open_link(way=first) as link:
        link.send_control(b"one")
        link.attach(second)
        link.send_control(b"two")
        link.detach()
        link.attach(third)
        link.send_control(b"three")
        await wait_all_tasks_blocked()
        assert third.frames == [b"three"]


async def test_inserted_frames_are_bounded(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        for _ in range(8):
            link.send_control(b"x")
        with pytest.raises(NotSent, match="stuck"):
            link.send_control(b"x")


# -- bulk --------------------------------------------------------------------------------------------------


async def test_bulk_is_asked_for_only_when_no_message_waits(autojump_clock: MockClock) -> None:
    way = Way(room=1)
    async with open_link(way=way) as link:
        link.add_bulk_source(Bulk("b", 30))
        for number in range(3):
            link.post(array(1, number), 900)
        await wait_all_tasks_blocked()
        way.make_room(100)
        await wait_all_tasks_blocked()
        kinds = [message[0] for message in way.messages]
        assert kinds == [1, 1, 1, *[9] * 30]


async def test_a_message_passes_bulk_after_the_frames_already_taken(autojump_clock: MockClock) -> None:
    way = Way(room=2)
    async with open_link(way=way) as link:
        link.add_bulk_source(Bulk("b", 1000))
        await wait_all_tasks_blocked()
        link.post(array(1, "urgent"), 0)
        way.make_room(3)
        await wait_all_tasks_blocked()
        assert [index for index, batch in enumerate(way.batches) if (1, "urgent") in batch] == [3]
        # two had been taken, one was sealed


async def test_sources_take_turns(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        one, two = Bulk("one", 20), Bulk("two", 20)
        link.add_bulk_source(one)
        link.add_bulk_source(two)
        link.add_bulk_source(one)
        await wait_all_tasks_blocked()
        names = [message[1] for message in way.messages]
        assert len(names) == 40
        assert names[:20].count("one") == 10
        assert all(0 < limit <= 1000 for limit in one.limits)


async def test_bulk_gives_way_while_somebody_waits_for_answers_on_the_link(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(Config(), way) as link:
        link.post(array(1, "nobody waits"), 0)
        source = Bulk("b", 1000, size=8 * KIB)
        link.add_bulk_source(source)
        await wait_all_tasks_blocked()
        way.make_room(1)
        await wait_all_tasks_blocked()
        assert set(source.shared) == {False}
        link.post(array(1, "somebody waits"), 0, flush=True)
        asked = len(source.limits)
        way.make_room(1)
        await wait_all_tasks_blocked()
        assert set(source.shared[asked:]) == {True}
        assert [len(batch) for batch in way.batches[1:]] == [31], "a full frame"
        way.make_room(1)
        await wait_all_tasks_blocked()
        assert way.batches[2][0] == (1, "somebody waits")
        assert len(way.batches[2]) == 3, "there are two pieces of bulk behind it"
        await trio.sleep(0.1)
        asked = len(source.limits)
        way.make_room(1)
        await wait_all_tasks_blocked()
        assert set(source.shared[asked:]) == {False}


@pytest.mark.parametrize("size", [0, 100, 16 * KIB, 64 * KIB])
async def test_a_frame_of_bulk_is_bounded_by_its_bytes_and_by_its_pieces(size: int, autojump_clock: MockClock) -> None:
    config = Config()
    way = Way(room=3)
    async with open_link(config, way) as link:
        link.add_bulk_source(Bulk("b", 100_000, size=size))
        await wait_all_tasks_blocked()
        for batch in way.batches:
            assert 0.9 * config.batch_bytes < len(batch) * (size + 512) < 1.1 * config.batch_bytes
            assert len(batch) < 520, "small pieces are work for either end"


async def test_a_frame_of_bulk_is_no_larger_than_what_peers_take(autojump_clock: MockClock) -> None:
    way = Way(room=1)
    async with open_link(way=way) as link:
        source = Bulk("b", 100, size=700)
        link.add_bulk_source(source)
        await wait_all_tasks_blocked()
        assert [len(batch) for batch in way.batches] == [1]
        assert max(source.limits) <= SMALL.max_payload


class Steps(trio.abc.Instrument):
    """Counts how often the task of a link runs."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("Link.run")


async def test_a_message_on_an_idle_link_wakes_its_task_once(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        await wait_all_tasks_blocked()
        counted = Steps()
        trio.lowlevel.add_instrument(counted)
        for number in range(10):
            link.post(array(1, number), 0)
            await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(counted)
        assert len(way.frames) == 10
        assert counted.count == 10


async def test_a_source_that_runs_dry_is_asked_again_when_it_is_ready(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        source = Bulk("b", 1)
        link.add_bulk_source(source)
        await wait_all_tasks_blocked()
        asked = len(source.limits)
        await trio.testing.wait_all_tasks_blocked()
        assert len(source.limits) == asked
        source.pieces = 2
        link.add_bulk_source(source)
        await wait_all_tasks_blocked()
        assert len(way.messages) == 3


@given(steps=steps, seed=st.integers(0, 1000), tail=st.booleans())
def test_whatever_happens_messages_keep_their_order_and_counters_add_up(
    steps: list[str], seed: int, tail: bool
) -> None:
    """A model: what was posted, against what the connections took, one after the other, and what is left."""
    seed_scheduler(seed)
    ways: list[Way] = []
    model: deque[int] = deque()

    def next_way() -> Way:
        ways.append(Way(room=1))
        return ways[-1]

    async def main() -> None:
        async with open_link(way=next_way()) as link:
            posted = bulk = 0
            run: list[int] = []
            growing = OpenRun(0)
            growing.end()
            for step in steps:
                match step:
                    case "post" | "large":
                        size = 990 if step == "large" else 200
                        run = [posted]
                        growing = OpenRun(1000)
                        try:
                            link.post(array(1, run), size, growing=growing)
                        except NotSent:
                            assert link.waiting_bytes + size + 32 > SMALL.link_bytes
                            growing.end()
                        else:
                            posted += 1
                            model.append(run[0])
                    case "grow":
                        if growing.is_open and growing.grown + 150 <= growing.room:
                            run.append(-1)
                            model.append(-1)
                            growing.grown += 150
                    case "room":
                        ways[-1].make_room(3)
                    case "run":
                        await wait_all_tasks_blocked()
                    case "detach":
                        link.detach()
                    case "attach":
                        link.attach(next_way())
                    case "session":
                        link.use(PlainSession(b"%c" % (65 + len(ways) % 26)))
                    case _:
                        bulk += 1
                        link.add_bulk_source(Bulk("b", 1))
                assert link.statistics().posted - posted <= bulk
            if tail:
                link.attach(next_way())
                ways[-1].make_room(1000)
                await wait_all_tasks_blocked()
                assert link.waiting_bytes == 0
            taken = [number for way in ways for message in way.messages if message[0] == 1 for number in message[1]]
            waiting = link.statistics().waiting
            assert taken == list(model)[: len(taken)]
            assert (waiting == 0) >= (tail is True)
            assert len(taken) == len(model) or waiting
            lost = link.close("over")
            assert lost == waiting
            statistics = link.statistics()
            assert statistics.posted == statistics.sent + statistics.lost
            assert posted <= statistics.posted <= posted + bulk
            assert statistics.frames_sent == sum(len(way.frames) for way in ways)
            assert statistics.bytes_sent == sum(len(frame) for way in ways for frame in way.frames)
            assert max((len(frame) for way in ways for frame in way.frames), default=0) <= 1000 + 200 + 32 + KIB

    trio.run(main, clock=MockClock())


async def test_a_batch_has_no_more_messages_than_receivers_take(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(Config(), way) as link:
        for number in range(2000):
            link.post(array(1, number), 0)
        await wait_all_tasks_blocked()
        assert [message[1] for message in way.messages] == list(range(2000))
        assert max(map(len, way.batches)) == MAX_MESSAGES


@pytest.mark.parametrize(("carried", "together"), [(1, 100), (100, 10), (MAX_CARRIED, 1), (10 * MAX_CARRIED, 1)])
async def test_a_batch_carries_no_more_messages_than_receivers_take(
    carried: int, together: int, autojump_clock: MockClock
) -> None:
    way = Way()
    async with open_link(Config(), way) as link:
        for number in range(600):
            link.post_carrying(array(1, number), 10, carried)
            if number % 100 == 50:
                await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert [message[1] for message in way.messages] == list(range(600))
        assert max(map(len, way.batches)) == together
        check(link, 600)
