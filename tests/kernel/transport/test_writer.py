"""Frames out by a connection that is a stream of bytes, on both ends of a pair of sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from iris.kernel.config import KIB, MIB
from iris.kernel.transport import writer
from iris.kernel.transport.reader import FrameReader
from iris.kernel.transport.sp import with_length
from iris.kernel.transport.writer import StreamOutgoing
from tests.support.transports import ClosedStreams, Notified


class Ends:
    """A way out, the other end of its connection, and the streams that watch it."""

    def __init__(self, stack: contextlib.ExitStack, *, tcp: bool = False) -> None:
        self.broke = 0
        self.streams = FrameReader(MIB, ClosedStreams())
        stack.callback(self.streams.close)
        near, self.far = connected() if tcp else socket.socketpair()
        stack.enter_context(near)
        stack.enter_context(self.far)
        near.setblocking(False)
        self.far.setblocking(False)
        self.near = near
        self.way = StreamOutgoing(near, self.streams, with_length, Notified(self.note))
        stack.callback(self.way.close)
        self.received = b""

    def note(self) -> None:
        self.broke += 1

    def read(self, size: int = MIB) -> None:
        with contextlib.suppress(BlockingIOError):
            self.received += self.far.recv(size)

    def look(self) -> None:
        """Do what a task that receives does when it is woken."""
        while select.select([self.streams.descriptor], [], [], 0)[0]:
            assert self.streams.receive_nowait() is None

    def fill(self) -> int:
        """Send until no frame is taken any more; return how many were."""
        taken = 0
        while self.way.send_nowait(bytes(64 * KIB)):
            taken += 1
        return taken

    def read_all(self, size: int) -> None:
        """Read so many bytes, while our end does nothing but receive."""
        while len(self.received) < size:
            select.select([self.far], [], [], 5)
            self.read()
            self.look()


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


@contextlib.contextmanager
def open_ends(*, tcp: bool = False) -> Iterator[Ends]:
    with contextlib.ExitStack() as stack:
        yield Ends(stack, tcp=tcp)


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">Q", len(frame)) + frame for frame in frames)


@given(
    frames=st.lists(st.binary(max_size=40) | st.integers(1, 300 * KIB).map(bytes), max_size=8),
    reads=st.lists(st.integers(1, 100 * KIB), min_size=1, max_size=8),
)
def test_what_is_taken_arrives_whole_and_in_order_however_slowly_it_is_read(
    frames: list[bytes], reads: list[int]
) -> None:
    expected = framed(*frames)
    with open_ends() as ends:
        turn = 0
        for frame in frames:
            while not ends.way.send_nowait(frame):
                ends.read(reads[turn % len(reads)])
                turn += 1
        while len(ends.received) < len(expected):
            ends.read(reads[turn % len(reads)])
            ends.look()
            turn += 1
        assert ends.received == expected
        assert not ends.broke


@given(
    sizes=st.lists(st.integers(32 * KIB, 300 * KIB), max_size=4),
    reads=st.lists(st.integers(20 * KIB, 100 * KIB), min_size=1, max_size=8),
)
def test_the_buffer_of_a_frame_is_given_back_once_all_of_it_is_sent_and_not_before(
    sizes: list[int], reads: list[int]
) -> None:
    """Whoever gets it next may write to it at once."""
    given: list[memoryview] = []

    def scribble(room: bytes | memoryview) -> None:
        if isinstance(room, memoryview):
            room[:] = bytes(len(room))
            given.append(room)

    frames = [bytes((number + 1,)) * size for number, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch, open_ends() as ends:
        patch.setattr(writer, "give_back", scribble)
        turn = 0
        for frame in frames:
            room = memoryview(bytearray(frame))
            while not ends.way.send_nowait(room):
                ends.read(reads[turn % len(reads)])
                turn += 1
        while len(ends.received) < len(framed(*frames)):
            ends.read(reads[turn % len(reads)])
            ends.look()
            turn += 1
        assert ends.received == framed(*frames)
        assert list(map(len, given)) == sizes


def test_what_waits_of_a_frame_does_not_hold_a_buffer_of_many_times_its_size() -> None:
    given: list[bytes | memoryview] = []
    with pytest.MonkeyPatch.context() as patch, open_ends() as ends:
        patch.setattr(writer, "give_back", given.append)
        frame = os.urandom(40_000)
        sent = 0
        while not ends.way.kept:  # the system has no room for all of it
            memory = bytearray(384 * 1024)
            memory[:40_000] = frame
            assert ends.way.send_nowait(memoryview(memory)[:40_000])
            sent += 1
            assert len(given) == sent
            memory[:] = bytes(len(memory))  # whoever gets it next may write to it at once
        assert ends.way.kept <= 40_004
        ends.read_all(sent * 40_004)
        ends.look()
        assert ends.received == framed(*[frame] * sent)


def test_the_buffer_of_a_frame_that_is_lost_is_not_given_back() -> None:
    with pytest.MonkeyPatch.context() as patch, open_ends(tcp=True) as ends:
        given: list[object] = []
        patch.setattr(writer, "give_back", given.append)
        assert ends.way.send_nowait(memoryview(bytearray(8 * MIB)))
        ends.far.close()
        ends.look()
        ends.way.close()
        assert given == []


def test_the_rest_of_a_frame_follows_although_nobody_waits_for_that() -> None:
    with open_ends(tcp=True) as ends:
        frame = os.urandom(8 * MIB)
        assert ends.way.send_nowait(frame)
        ends.read_all(len(frame) + 8)
        assert ends.received == framed(frame)
        assert ends.way.send_nowait(b"next")
        ends.read_all(len(frame) + 20)
        assert ends.received.endswith(framed(b"next"))


@pytest.mark.parametrize("tcp", [True, False])
def test_whoever_reads_what_was_sent_does_not_wake_the_sender(tcp: bool) -> None:
    with open_ends(tcp=tcp) as ends:
        ends.look()
        for turn in range(3):
            if turn == 1:  # nor once there was something that was not taken at first
                assert ends.way.send_nowait(bytes(8 * MIB))
                ends.read_all(8 * MIB + 20)
                ends.look()
            assert ends.way.send_nowait(b"four")
            before = len(ends.received)
            while len(ends.received) == before:
                select.select([ends.far], [], [], 5)
                ends.read()
            assert not select.select([ends.streams.descriptor], [], [], 0)[0]


def test_a_length_may_be_cut_too() -> None:
    """Where the system takes three bytes only."""

    class Miserly(socket.socket):
        def sendmsg(self, pieces: Any, *_: Any) -> int:
            return self.send(b"".join(pieces)[:3])

        def send(self, piece: Any, *_: Any) -> int:
            return super().send(memoryview(piece)[:3])

    with open_ends() as ends:
        way = StreamOutgoing(Miserly(fileno=os.dup(ends.near.fileno())), ends.streams, with_length, Notified(ends.note))
        assert way.send_nowait(b"abcdefgh")
        for _ in range(4):
            assert not way.send_nowait(b"")
        assert way.send_nowait(b"")
        ends.read()
        assert ends.received == framed(b"abcdefgh") + framed(b"")[:3]
        way.close()


@pytest.mark.parametrize("tcp", [False, True])
def test_who_never_reads_costs_what_the_system_holds_and_one_frame(tcp: bool) -> None:
    with open_ends(tcp=tcp) as ends:
        assert ends.fill() < 500
        assert 0 < ends.way.kept <= 64 * KIB + 8
        assert not ends.way.send_nowait(b"")
        ends.look()
        assert not ends.broke


@pytest.mark.parametrize("tcp", [False, True])
def test_an_idle_connection_that_ends_is_noticed_once(tcp: bool) -> None:
    with open_ends(tcp=tcp) as ends:
        for count in range(2):
            ends.look()
            assert ends.broke == count, "by now it has ended so often"
            ends.far.close()
        ends.look()
        for _ in range(3):
            assert not ends.way.send_nowait(b"x"), "that is told by then, or about to be"
        ends.look()
        assert ends.broke == 1


def test_a_connection_that_is_reset_is_noticed() -> None:
    with open_ends(tcp=True) as ends:
        ends.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ends.far.close()
        ends.look()
        assert ends.broke == 1


@pytest.mark.parametrize("full", [False, True])
def test_one_that_ends_is_noticed_by_who_sends_before_it_is_seen(full: bool) -> None:
    with open_ends() as ends:
        if full:
            ends.fill()
        ends.far.close()
        assert not ends.way.send_nowait(b"x")
        assert ends.broke == 1
        assert not ends.way.kept
        ends.look()
        assert ends.broke == 1


def test_half_a_frame_is_given_up_with_its_connection() -> None:
    with open_ends(tcp=True) as ends:
        assert ends.way.send_nowait(bytes(8 * MIB))
        assert ends.way.kept
        ends.far.close()
        ends.look()
        assert ends.broke == 1
        assert not ends.way.kept


def test_who_says_something_back_is_hung_up_on() -> None:
    with open_ends() as ends:
        ends.far.send(b"hello")
        ends.look()
        assert ends.broke == 1
        assert not ends.way.send_nowait(b"x")


def test_the_end_of_another_connection_that_had_the_same_descriptor_is_not_its_own() -> None:
    """Two end at the same time; whoever is told of the one closes the other, and has a new one in its place."""
    with contextlib.ExitStack() as stack:
        streams = FrameReader(MIB, ClosedStreams())
        stack.callback(streams.close)
        pairs = [socket.socketpair() for _ in range(3)]
        for one in (one for pair in pairs for one in pair):
            stack.enter_context(one)
            one.setblocking(False)
        broken: list[int] = []

        def note(number: int) -> None:
            broken.append(number)
            if number < 2:
                descriptor = pairs[1 - number][0].fileno()
                ways[1 - number].close()
                os.dup2(pairs[2][0].fileno(), descriptor)
                ways.append(open_way(2, socket.socket(fileno=descriptor)))

        def open_way(number: int, connection: socket.socket) -> StreamOutgoing:
            return StreamOutgoing(connection, streams, with_length, Notified(lambda: note(number)))

        ways = [open_way(number, pairs[number][0]) for number in range(2)]
        for number in range(2):
            pairs[number][1].close()
        while select.select([streams.descriptor], [], [], 0)[0]:
            assert streams.receive_nowait() is None
        assert len(broken) == 1
        assert ways[2].send_nowait(b"x")
        assert pairs[2][1].recv(100) == framed(b"x")
        for way in ways:
            way.close()


def test_closing_one_that_a_child_has_inherited_leaves_nothing_to_watch() -> None:
    with open_ends() as ends:
        inherited = os.dup(ends.near.fileno())  # as a fork does
        try:
            ends.way.close()
            ends.far.close()
            assert not select.select([ends.streams.descriptor], [], [], 0)[0]
        finally:
            os.close(inherited)


async def test_who_waits_on_a_lost_connection_waits_for_it_to_be_closed() -> None:
    """Otherwise a sender that tries again and again would keep the processor busy until that is reported."""

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ends.way.wait_writable()

    with open_ends() as ends, trio.fail_after(60):
        ends.far.close()
        ends.look()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 2
            ends.way.close()


def test_where_there_is_no_room_to_watch_one_more_it_remains_the_callers() -> None:
    with open_ends() as ends, contextlib.ExitStack() as stack:
        near, far = (stack.enter_context(one) for one in socket.socketpair())
        ends.streams.watch(near, lambda _: None)
        with pytest.raises(OSError, match="exists"):
            StreamOutgoing(near, ends.streams, with_length, Notified(ends.note))
        near.send(b"x")
        assert far.recv(1) == b"x"
