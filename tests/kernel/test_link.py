"""A link: order, batches, bounds, and counters that add up."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import final

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel.config import KIB, Config
from iris.kernel.errors import NotSent
from iris.kernel.ids import NodeId
from iris.kernel.link import Link
from iris.kernel.wire import BatchDecoder, Message
from tests.support.scheduling import seed_scheduler

NODE = NodeId("ab" * 16)
SMALL = Config(max_payload=1000, batch_bytes=1000, link_bytes=10_000)


@final
class PlainSession:
    """Seals nothing, but says whose frame it is."""

    def __init__(self, name: bytes = b"S") -> None:
        self.name = name

    def seal(self, body: bytes | bytearray | memoryview) -> bytes:
        return self.name + bytes(body)


@final
class Way:
    """An ``Outgoing`` that takes as many frames as it has room for."""

    def __init__(self, room: int = 1_000_000, taken: Callable[[bytes], None] = lambda _: None) -> None:
        self.room = room
        self.frames: list[bytes] = []
        self.closed = False
        self._taken = taken
        self._news = trio.lowlevel.ParkingLot()

    def send_nowait(self, frame: bytes) -> bool:
        if self.closed:
            raise trio.ClosedResourceError
        if not self.room:
            return False
        self.room -= 1
        self.frames.append(frame)
        self._taken(frame)
        return True

    async def wait_writable(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        await self._news.park()
        if self.closed:
            raise trio.ClosedResourceError

    def make_room(self, frames: int) -> None:
        self.room += frames
        self._news.unpark_all()

    def close(self) -> None:
        self.closed = True
        self._news.unpark_all()

    @property
    def batches(self) -> list[list[Message]]:
        decoder = BatchDecoder()
        return [decoder.decode_untrusted(frame[1:]) for frame in self.frames]

    @property
    def messages(self) -> list[Message]:
        return [message for batch in self.batches for message in batch]


@final
class Bulk:
    """So many pieces of data, counted as they are taken."""

    def __init__(self, name: str, pieces: int, size: int = 100) -> None:
        self.name = name
        self.pieces = pieces
        self.size = size
        self.limits: list[int] = []

    def take(self, limit: int) -> tuple[Message, int] | None:
        self.limits.append(limit)
        if not self.pieces:
            return None
        self.pieces -= 1
        return (9, self.name, self.pieces), self.size


@asynccontextmanager
async def open_link(config: Config = SMALL, way: Way | None = None) -> AsyncIterator[Link]:
    """A link with its flusher; with a way it is up."""
    link = Link(NODE, config)
    if way is not None:
        link.use(PlainSession())
        link.attach(way)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield link
        link.close("the test is over")


def check(link: Link, posted: int) -> None:
    statistics = link.statistics()
    assert posted == statistics.posted == statistics.sent + statistics.lost + statistics.waiting
    assert statistics.bytes_waiting == link.waiting_bytes <= SMALL.link_bytes


def fill(link: Link, size: int) -> int:
    """Post until the link takes no more; return how many it took."""
    posted = 0
    while True:
        try:
            link.post((1, b""), size)
        except NotSent:
            return posted
        posted += 1


# -- batching ----------------------------------------------------------------------------------------------


async def test_what_is_posted_in_one_round_leaves_as_one_frame(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(5):
            link.post((1, number), 10)
        await wait_all_tasks_blocked()
        link.post((1, 5), 10)
        await wait_all_tasks_blocked()
        assert way.batches == [[(1, number) for number in range(5)], [(1, 5)]]
        check(link, 6)


async def test_a_lone_message_leaves_within_post(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(3):
            await trio.sleep(1)
            link.post((1, number), 10)
            assert way.messages[-1] == (1, number)
        link.post((1, 3), 10)
        assert len(way.frames) == 3  # it came too soon after the one before


async def test_a_link_that_is_busy_batches_again_at_once(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(3):
            link.post((1, number), 10)
        await trio.sleep(1)
        link.post((1, 3), 10)  # the frame before it carried several
        link.post((1, 4), 10)
        await wait_all_tasks_blocked()
        assert way.batches == [[(1, 0), (1, 1), (1, 2)], [(1, 3), (1, 4)]]


async def test_the_generation_says_whether_a_message_is_encoded(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        assert link.post((1,), 0) == link.generation
        await trio.sleep(1)
        assert link.post((1,), 0) != link.generation


async def test_a_full_batch_leaves_without_waiting_for_the_scheduler(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        for number in range(100):
            link.post((1, number), 100)
        assert len(way.frames) > 10
        await wait_all_tasks_blocked()
        assert way.messages == [(1, number) for number in range(100)]
        check(link, 100)


async def test_a_batch_never_exceeds_its_size_but_for_one_large_message(autojump_clock: MockClock) -> None:
    way = Way()
    chance = random.Random(1)
    async with open_link(way=way) as link:
        sent: list[Message] = []
        for _ in range(200):
            message = (1, bytes(chance.choice((0, 1, 300, 999))))
            sent.append(message)
            link.post(message, len(message[1]))
            if chance.random() < 0.2:
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()
        assert way.messages == sent
        for batch, frame in zip(way.batches, way.frames, strict=True):
            assert len(frame) <= 1000 or len(batch) == 1


async def test_what_grows_counts_with_what_its_encoding_adds(autojump_clock: MockClock) -> None:
    """Payloads of one byte take three, so that a batch of them is full long before they sum up to its size."""
    way = Way()
    async with open_link(way=way) as link:
        payloads = [b"x"]
        link.post((1, payloads), 1)
        generation = link.generation
        while link.generation == generation:
            payloads.append(b"x")
            link.grow(1)
        assert len(payloads) > 100
        await wait_all_tasks_blocked()
        assert len(way.frames[0]) <= 1000
        assert way.messages == [(1, tuple(payloads))]


async def test_a_message_may_grow_until_its_batch_is_begun_to_be_encoded(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        payloads = [b"a"]
        link.post((1, payloads), 1)
        generation = link.generation
        payloads.append(b"b")
        link.grow(1)
        await wait_all_tasks_blocked()
        assert link.generation != generation
        assert way.messages == [(1, (b"a", b"b"))]
        check(link, 1)


# -- bounds ------------------------------------------------------------------------------------------------


async def test_a_full_link_refuses_and_says_how_full_it_is(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        posted = fill(link, 500)
        assert posted == 10_000 // 532
        with pytest.raises(NotSent, match="10000"):
            link.post((1, b""), 500)
        assert link.statistics().refused == 2
        check(link, posted)


async def test_a_full_link_has_a_reserve_for_what_keeps_nodes_in_agreement(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        fill(link, 500)
        for _ in range(10):
            link.post((1,), 500, 5320)
        with pytest.raises(NotSent):
            link.post((1,), 500, 5320)
        with pytest.raises(NotSent):
            link.post((1,), 0)


async def test_empty_messages_are_bounded_too(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        posted = fill(link, 0)
        assert posted == 10_000 // 32
        check(link, posted)


async def test_whoever_waits_for_room_goes_on_at_half(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link, trio.open_nursery() as nursery:
        for _ in range(15):
            link.post((1,), 500)
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
            link.post((1,), 500)
        with trio.move_on_after(1) as scope:
            await link.wait_room()
        assert scope.cancelled_caught
        check(link, 15)


async def test_a_link_is_stalled_when_messages_wait_and_nothing_moves(autojump_clock: MockClock) -> None:
    way = Way(room=1)
    async with open_link(way=way) as link:
        await trio.sleep(100)
        link.post((1,), 0)
        assert not link.is_stalled(0.25)  # it has only just been asked to do something
        await wait_all_tasks_blocked()
        await trio.sleep(100)
        assert not link.is_stalled(0.25)  # nothing waits
        for _ in range(3):
            link.post((1,), 900)
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
        link.post((1,), 0)
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
            link.post((1, number), 400)
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
            link.post((1, number), 400)
        await wait_all_tasks_blocked()
        first.close()
        await wait_all_tasks_blocked()
        assert link.outgoing is None
        link.attach(second)
        await wait_all_tasks_blocked()
        assert [*first.messages, *second.messages] == [(1, number) for number in range(5)]


async def test_a_new_session_seals_what_was_not_sealed_yet(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link:
        for number in range(6):
            link.post((1, number), 400)
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
        link.post((1,), 0)
        await wait_all_tasks_blocked()
        assert first.closed
        assert second.messages == [(1,)]


async def test_closing_counts_what_waits_as_lost_and_refuses_the_rest(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link:
        for number in range(10):
            link.post((1, number), 400)
        await wait_all_tasks_blocked()
        assert link.close("the peer is gone") == 10
        assert link.close("again") == 0
        assert way.closed
        check(link, 10)
        assert link.statistics().lost == 10
        with pytest.raises(NotSent, match="the peer is gone"):
            link.post((1,), 0)
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
        link.post((1,), 500)
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
        for message in BatchDecoder().decode_untrusted(frame[1:]):
            if message[0] == 1:
                answered.append(message[1])
                link.post((2, message[1]), 700)

    way = Way(taken=answer)
    async with open_link(Config(), way) as link:
        link._size = 1000
        for number in range(50):
            link.post((1, number), 300)
        await wait_all_tasks_blocked()
        assert answered == list(range(50))
        assert [message[1] for message in way.messages if message[0] == 2] == list(range(50))
        assert link.statistics().sent == 100


async def test_a_link_may_end_by_what_its_own_frame_brings_about(autojump_clock: MockClock) -> None:
    def end(_: bytes) -> None:
        link.close("enough")

    way = Way(taken=end)
    async with open_link(way=way) as link:
        link.post((1,), 0)
        await wait_all_tasks_blocked()
        assert "enough" in repr(link)


async def test_an_inserted_frame_goes_ahead_of_everything_not_sealed(autojump_clock: MockClock) -> None:
    way = Way(room=0)
    async with open_link(way=way) as link:
        for number in range(6):
            link.post((1, number), 400)
        await wait_all_tasks_blocked()
        link.insert(b"Hello")
        link.use(PlainSession(b"T"))
        way.make_room(10)
        await wait_all_tasks_blocked()
        assert [frame[:1] for frame in way.frames] == [b"S", b"H", b"T", b"T"]
        check(link, 6)


async def test_an_inserted_frame_is_for_one_connection_only(autojump_clock: MockClock) -> None:
    first, second, third = Way(room=0), Way(room=0), Way()
    async with open_link(way=first) as link:
        link.insert(b"one")
        link.attach(second)
        link.insert(b"two")
        link.detach()
        link.attach(third)
        link.insert(b"three")
        await wait_all_tasks_blocked()
        assert third.frames == [b"three"]


async def test_inserted_frames_are_bounded(autojump_clock: MockClock) -> None:
    async with open_link() as link:
        for _ in range(8):
            link.insert(b"x")
        with pytest.raises(NotSent, match="stuck"):
            link.insert(b"x")


# -- bulk --------------------------------------------------------------------------------------------------


async def test_bulk_is_asked_for_only_when_no_message_waits(autojump_clock: MockClock) -> None:
    way = Way(room=1)
    async with open_link(way=way) as link:
        link.ready(Bulk("b", 30))
        for number in range(3):
            link.post((1, number), 900)
        await wait_all_tasks_blocked()
        way.make_room(100)
        await wait_all_tasks_blocked()
        kinds = [message[0] for message in way.messages]
        assert kinds == [1, 1, 1, *[9] * 30]


async def test_a_message_passes_bulk_after_the_frames_already_taken(autojump_clock: MockClock) -> None:
    way = Way(room=2)
    async with open_link(way=way) as link:
        link.ready(Bulk("b", 1000))
        await wait_all_tasks_blocked()
        link.post((1, "urgent"), 0)
        way.make_room(3)
        await wait_all_tasks_blocked()
        assert [index for index, batch in enumerate(way.batches) if (1, "urgent") in batch] == [3]
        # two had been taken, one was sealed


async def test_sources_take_turns(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        one, two = Bulk("one", 20), Bulk("two", 20)
        link.ready(one)
        link.ready(two)
        link.ready(one)
        await wait_all_tasks_blocked()
        names = [message[1] for message in way.messages]
        assert len(names) == 40
        assert names[:20].count("one") == 10
        assert all(0 < limit <= 1000 for limit in one.limits)


async def test_a_source_that_runs_dry_is_asked_again_when_it_is_ready(autojump_clock: MockClock) -> None:
    way = Way()
    async with open_link(way=way) as link:
        source = Bulk("b", 1)
        link.ready(source)
        await wait_all_tasks_blocked()
        asked = len(source.limits)
        await trio.testing.wait_all_tasks_blocked()
        assert len(source.limits) == asked
        source.pieces = 2
        link.ready(source)
        await wait_all_tasks_blocked()
        assert len(way.messages) == 3


# -- everything at once ------------------------------------------------------------------------------------

steps = st.lists(
    st.sampled_from(["post", "post", "post", "large", "grow", "room", "run", "detach", "attach", "session", "bulk"]),
    max_size=60,
)


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
            generation = -1
            for step in steps:
                match step:
                    case "post" | "large":
                        size = 990 if step == "large" else 200
                        run = [posted]
                        try:
                            link.post((1, run), size)
                        except NotSent:
                            assert link.waiting_bytes + size + 32 > SMALL.link_bytes
                            generation = -1
                        else:
                            posted += 1
                            generation = link.generation
                            model.append(run[0])
                    case "grow":
                        if generation == link.generation:
                            run.append(-1)
                            model.append(-1)
                            link.grow(150)
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
                        link.ready(Bulk("b", 1))
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
