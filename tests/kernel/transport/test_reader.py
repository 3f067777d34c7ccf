"""Frames from stream connections, without a network around them: what comes in which pieces, and from whom."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.config import KIB, MIB
from iris.kernel.transport.reader import FrameReader
from tests.support.transports import ClosedStreams

LIMIT = 1000 * KIB


def framed(*frames: bytes, typed: bool = False) -> bytes:
    """Return what goes over TCP for frames; or over ipc, where they have a type."""
    return b"".join(b"\x01" * typed + struct.pack(">Q", len(frame)) + frame for frame in frames)


class Ends:
    """Streams and the other ends of their connections, of which those of ``typed`` are as by ipc."""

    def __init__(self, stack: contextlib.ExitStack, count: int, limit: int, typed: Collection[int]) -> None:
        ended = ClosedStreams()
        self.closed = ended.numbers
        self.streams = FrameReader(limit, ended)
        stack.callback(self.streams.close)
        self.near: dict[int, socket.socket] = {}
        self.far: dict[int, socket.socket] = {}
        for number in range(1, count + 1):
            near, far = socket.socketpair()
            near.setblocking(False)
            self.streams.add(number, near, typed=number in typed)
            self.near[number] = near
            self.far[number] = stack.enter_context(far)
            far.setblocking(False)

    def receive(self) -> list[tuple[int, bytes]]:
        """Receive all there is, as a waiting caller would."""
        received: list[tuple[int, bytes]] = []
        while self.is_readable():
            while (frame := self.streams.receive_nowait()) is not None:
                received.append((self.streams.source, bytes(frame)))
        return received

    def is_readable(self) -> bool:
        return bool(select.select([self.streams.descriptor], [], [], 0)[0])


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def is_over(far: socket.socket) -> bool:
    """Return whether our end has closed; if not everything was read, the system says so by an error."""
    try:
        return far.recv(1) == b""
    except ConnectionResetError:
        return True


@contextlib.contextmanager
def open_ends(count: int = 1, limit: int = LIMIT, typed: Collection[int] = ()) -> Iterator[Ends]:
    with contextlib.ExitStack() as stack:
        yield Ends(stack, count, limit, typed)


@given(
    frames=st.lists(st.binary(max_size=40) | st.integers(1, 700 * KIB).map(bytes), max_size=8),
    cuts=st.lists(st.integers(0, 400 * KIB), max_size=12),
    typed=st.booleans(),
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[bytes], cuts: list[int], typed: bool
) -> None:
    data = framed(*frames, typed=typed)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    received: list[bytes] = []
    with open_ends(typed=[1] if typed else []) as ends:
        for begin, end in itertools.pairwise(places):
            piece = memoryview(data)[begin:end]
            while piece:
                piece = piece[ends.far[1].send(piece) :]
                received += [frame for _, frame in ends.receive()]
        assert received == frames
        assert not ends.closed


@given(
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 600 * KIB)), max_size=8),
    pieces=st.lists(st.sampled_from([7, 90 * KIB, 200 * KIB]), min_size=2, max_size=6, unique=True),
)
def test_connections_that_send_large_frames_in_turns_do_not_mix_them(
    sizes: list[tuple[int, int]], pieces: list[int]
) -> None:
    """The first part of one frame waits in the common buffer, until another connection needs that."""
    sent: dict[int, list[bytes]] = {number: [] for number in (1, 2, 3)}
    for place, (number, size) in enumerate(sizes):
        sent[number].append(bytes((place + 1,)) * size)
    rest = {number: memoryview(framed(*frames, typed=number == 2)) for number, frames in sent.items()}
    received: dict[int, list[bytes]] = {number: [] for number in (1, 2, 3)}
    with open_ends(3, typed=[2]) as ends:
        for piece in itertools.cycle(pieces):
            for number in (1, 2, 3):
                if rest[number]:
                    rest[number] = rest[number][ends.far[number].send(rest[number][:piece]) :]
                for source, frame in ends.receive():
                    received[source].append(frame)
            if not any(rest.values()):
                break
        assert received == sent
        assert not ends.closed


def test_large_frames_one_after_the_other_come_to_the_same_memory() -> None:
    with open_ends() as ends:
        for number in range(6):
            data = memoryview(framed(bytes((number,)) * 250 * KIB))
            frames: list[bytes | memoryview | None] = []
            while data:
                data = data[ends.far[1].send(data) :]
                frames.append(ends.streams.receive_nowait())
            *none, frame = frames
            assert not any(none)
            assert frame == bytes((number,)) * 250 * KIB
            assert isinstance(frame, memoryview)
            assert frame.obj is ends.streams._chunk.obj


def test_a_connection_that_ends_in_the_middle_of_a_frame_leaves_nothing_to_the_next() -> None:
    with open_ends(2) as ends:
        ends.far[1].send(framed(b"never whole")[:-1])
        assert ends.receive() == []
        ends.far[1].close()
        ends.far[2].send(framed(b"second"))
        assert ends.receive() == [(2, b"second")]
        assert ends.closed == [1]


@pytest.mark.parametrize("typed", [False, True])
def test_each_byte_may_come_alone(typed: bool) -> None:
    frames = [b"", b"a", b"", b"bcd" * 10, b""]
    received: list[tuple[int, bytes]] = []
    with open_ends(typed=[1] if typed else []) as ends:
        for byte in framed(*frames, typed=typed):
            ends.far[1].send(bytes((byte,)))
            received += ends.receive()
    assert received == [(1, frame) for frame in frames]


def test_several_connections_take_turns_and_each_frame_has_its_source() -> None:
    with open_ends(3) as ends:
        for number, far in ends.far.items():
            far.send(framed(b"%d first" % number, b"%d second" % number)[:-1])
        assert sorted(ends.receive()) == [(number, b"%d first" % number) for number in ends.far]
        for far in ends.far.values():
            far.send(b"d")
        assert sorted(ends.receive()) == [(number, b"%d second" % number) for number in ends.far]


def test_a_busy_connection_does_not_keep_another_waiting() -> None:
    with open_ends(2) as ends:
        ends.far[2].send(framed(b"rare"))
        for _ in range(4):
            ends.far[1].send(framed(b"busy"))
            ends.streams.receive_nowait()
            if ends.streams.source == 2:
                return
        pytest.fail("it was not read")


@pytest.mark.parametrize("together", [framed(b"alone"), framed(b"large" * KIB), framed(b"one", b"other")])
def test_after_a_frame_it_is_asked_whether_there_is_more(together: bytes) -> None:
    with open_ends() as ends:
        ends.far[1].send(together)
        assert ends.streams.receive_nowait()
        ends.far[1].send(framed(b"more"))
        received = [ends.streams.receive_nowait() for _ in range(2)]
        assert b"more" in received


def test_a_frame_that_comes_in_pieces_gives_the_others_their_turn_after_each() -> None:
    """``receive_nowait`` ends although there is more, and a task that then waits is woken at once."""
    with open_ends() as ends:
        ends.far[1].setblocking(True)
        ends.far[1].send(struct.pack(">Q", 600) + bytes(100))
        assert ends.streams.receive_nowait() is None
        ends.far[1].send(bytes(100))
        assert ends.is_readable()
        assert ends.streams.receive_nowait() is None
        assert not ends.is_readable()
        ends.far[1].send(bytes(400))
        assert ends.receive() == [(1, bytes(600))]


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_a_frame_has_at_most_the_limit(size: int) -> None:
    with open_ends(2, limit=1000, typed=[2]) as ends:
        ends.far[1].send(framed(bytes(size)))
        ends.far[2].send(framed(bytes(size), typed=True))
        assert sorted(ends.receive()) == [(1, bytes(size)), (2, bytes(size))]


@pytest.mark.parametrize("kind", [0, 2, 255])
def test_who_sends_by_ipc_what_is_no_message_is_hung_up_on_and_nobody_else(kind: int) -> None:
    with open_ends(2, typed=[1, 2]) as ends:
        ends.far[1].send(framed(b"before", typed=True) + bytes((kind,)) + struct.pack(">Q", 1) + b"x")
        ends.far[2].send(framed(b"other", typed=True))
        assert sorted(ends.receive()) == [(1, b"before"), (2, b"other")]
        assert ends.closed == [1]
        assert is_over(ends.far[1])


@pytest.mark.parametrize("size", [1001, 2**31, 2**63, 2**64 - 1])
def test_who_announces_more_than_the_limit_is_hung_up_on_and_nobody_else(size: int) -> None:
    with open_ends(2, limit=1000) as ends:
        ends.far[1].send(framed(b"before") + struct.pack(">Q", size) + bytes(100))
        ends.far[2].send(framed(b"other"))
        assert sorted(ends.receive()) == [(1, b"before"), (2, b"other")]
        assert ends.closed == [1]
        assert is_over(ends.far[1])
        assert len(ends.streams) == 1


def test_a_frame_that_is_announced_costs_no_memory_before_it_comes() -> None:
    """Otherwise unauthenticated peers could have a megabyte each for nine bytes."""
    with open_ends(200) as ends:
        before = resident()
        for far in ends.far.values():
            far.send(struct.pack(">Q", LIMIT) + b"x")
        assert ends.receive() == []
        assert resident() - before < 8 * MIB


@pytest.mark.parametrize("left", [b"", b"\0\0", struct.pack(">Q", 100), struct.pack(">Q", 100) + b"half"])
def test_what_came_before_an_end_counts_but_for_what_is_not_whole(left: bytes) -> None:
    with open_ends(2) as ends:
        ends.far[1].send(framed(b"whole", b"whole") + left)
        ends.far[1].close()
        assert ends.receive() == [(1, b"whole"), (1, b"whole")]
        assert ends.closed == [1]
        ends.far[2].send(framed(b"goes on"))
        assert ends.receive() == [(2, b"goes on")]


def test_hanging_up_drops_what_has_come_and_is_told_once() -> None:
    with open_ends(2) as ends:
        for far in ends.far.values():
            far.send(framed(b"first", b"second"))
        assert ends.streams.receive_nowait() == b"first"
        guilty = ends.streams.source
        for _ in range(2):
            ends.streams.hang_up(guilty)
        ends.streams.hang_up(12345)
        assert ends.closed == [guilty]
        assert ends.receive() == [(3 - guilty, b"first"), (3 - guilty, b"second")]


def test_a_connection_that_was_found_ready_may_be_gone_before_it_is_read() -> None:
    with open_ends(3) as ends:
        for far in ends.far.values():
            far.send(framed(b"x"))
        assert ends.streams.receive_nowait() == b"x"
        last = ends.streams.source
        for number in ends.far:
            if number != last:
                ends.streams.hang_up(number)
        assert ends.receive() == []
        assert sorted([*ends.closed, last]) == [1, 2, 3]


def test_closing_closes_all_and_tells_nobody() -> None:
    with open_ends(2) as ends:
        ends.far[1].send(framed(b"first", b"second"))
        assert ends.streams.receive_nowait() == b"first"
        ends.streams.close()
        assert len(ends.streams) == 0
        assert not ends.closed
        assert ends.far[2].recv(1) == b""


def test_a_connection_that_a_child_has_inherited_is_not_watched_any_more_when_it_is_closed_here() -> None:
    with open_ends() as ends:
        inherited = os.dup(ends.near[1].fileno())  # as a fork does
        try:
            ends.streams.hang_up(1)
            ends.far[1].send(b"x")
            assert not ends.is_readable()
        finally:
            os.close(inherited)


_LENGTHS = st.one_of(
    st.sampled_from([LIMIT, LIMIT + 1, 2**31, 2**32, 2**63, 2**64 - 1]), st.integers(0, 300), st.integers(0, 2**64 - 1)
)
_HOSTILE = st.lists(
    st.one_of(
        st.binary(max_size=100),  # garbage
        st.binary(max_size=300).map(framed),
        _LENGTHS.map(lambda size: struct.pack(">Q", size)),
        st.tuples(_LENGTHS, st.binary(max_size=200)).map(lambda said: struct.pack(">Q", said[0]) + said[1]),
        st.integers(1, 64 * KIB).map(bytes),
    ),
    max_size=12,
)


def read_as_specified(data: bytes, limit: int, typed: bool) -> tuple[list[bytes], bool]:
    """Return the frames in what a peer has sent, and whether its connection is to be closed."""
    frames: list[bytes] = []
    at = typed + 0
    while len(data) - at >= 8:
        size = int.from_bytes(data[at : at + 8])
        if size > limit or (typed and data[at - 1] != 1):
            return frames, True
        if len(data) - at - 8 < size:
            break
        frames.append(data[at + 8 : at + 8 + size])
        at += 8 + size + typed
    return frames, False


@given(
    said=_HOSTILE, cuts=st.lists(st.integers(0, 100 * KIB), max_size=10), ends=st.booleans(), kind=st.integers(-1, 2)
)
def test_whatever_a_stranger_says_he_is_read_to_the_letter_and_nobody_else_notices(
    said: list[bytes], cuts: list[int], ends: bool, kind: int
) -> None:
    """By TCP, or by ipc with messages of some type."""
    typed = kind >= 0
    data = b"".join(bytes((kind,)) + piece if typed else piece for piece in said)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    expected, guilty = read_as_specified(data, LIMIT, typed)
    received: list[tuple[int, bytes]] = []
    turns = 0
    with open_ends(2, typed=[1] if typed else []) as there:
        for begin, end in itertools.pairwise(places):
            piece = memoryview(data)[begin:end]
            while piece:
                try:
                    piece = piece[there.far[1].send(piece) :]
                except OSError:  # he has been hung up on
                    break
                there.far[2].send(framed(b"%d" % turns))
                turns += 1
                received += there.receive()
                assert there.streams.held <= min(LIMIT, len(data))
        if ends:
            there.far[1].close()
        there.far[2].send(framed(b"last"))
        received += there.receive()
        assert [frame for number, frame in received if number == 1] == expected
        assert [frame for number, frame in received if number == 2] == [b"%d" % turn for turn in range(turns)] + [
            b"last"
        ]
        assert there.closed == ([1] if guilty or ends else [])


def test_that_one_which_is_watched_takes_more_is_told_only_while_that_is_wanted() -> None:
    with open_ends() as ends, contextlib.ExitStack() as stack:
        near, far = (stack.enter_context(one) for one in socket.socketpair())
        near.setblocking(False)
        told: list[int] = []
        ends.streams.watch(near, told.append, room=False)
        for wanted in (False, True, False):
            ends.streams.watch_room(near, wanted=wanted)
            near.send(b"some")
            far.recv(4)
            ends.receive()
            assert bool(told) == wanted
            told.clear()
        ends.streams.watch_room(near, wanted=True)
        ends.receive()
        assert told == [select.EPOLLOUT], "what there was room for before is told, too"


def test_what_is_only_watched_is_told_of_when_it_takes_more_and_when_it_ends() -> None:
    with open_ends() as ends, contextlib.ExitStack() as stack:
        near, far = (stack.enter_context(one) for one in socket.socketpair())
        for one in (near, far):
            one.setblocking(False)
        told: list[int] = []
        ends.streams.watch(near, told.append)
        ends.receive()
        told.clear()
        with contextlib.suppress(BlockingIOError):
            while True:
                near.send(bytes(KIB))
        assert not ends.receive()
        assert not told, "it takes nothing"
        with contextlib.suppress(BlockingIOError):
            while True:
                far.recv(MIB)
        ends.receive()
        assert told
        assert all(events == select.EPOLLOUT for events in told)
        ends.receive()
        far.close()
        ends.receive()
        assert told[-1] & select.EPOLLRDHUP
        assert not ends.is_readable(), "an end is told once"
        ends.streams.unwatch(near)
        ends.streams.unwatch(near)
        ends.streams.watch_room(near, wanted=True)
        ends.far[1].send(framed(b"goes on"))
        assert ends.receive() == [(1, b"goes on")]
