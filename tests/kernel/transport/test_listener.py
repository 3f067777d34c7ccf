"""Connections by TCP until they greet: on the real network, where other programs may say what they like."""

from __future__ import annotations

import contextlib
import errno
import itertools
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.transport.greeting import SpGreeting
from iris.kernel.transport.listener import Listener
from iris.kernel.transport.network import NetworkTransport
from iris.kernel.transport.sp import GREETING
from tests.kernel.transport.test_connections import Log
from tests.support.transports import PATIENT, check_idle, ignore, open_transports, receive, waiting
from tests.support.web import is_closed

ANSWER = b"\0SP\0\0\x51\0\0"
PLACES = Config().half_open_per_address * 3 // 4


def address_of(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2])


@contextlib.contextmanager
def crowd(url: str, count: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connect so often, without a word."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(address_of(url), timeout=60, source_address=(source, 0)))
            for _ in range(count)
        ]


async def test_who_does_not_greet_is_sent_away_in_time_and_counted() -> None:
    async with open_transports(config=Config(handshake_timeout=0.3)) as (far,):
        log = Log()
        far.observe(log)
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        began = time.monotonic()
        with crowd(url, 3) as strangers:
            strangers[1].sendall(GREETING[:5])
            assert all([await trio.to_thread.run_sync(is_closed, one) for one in strangers])
            assert time.monotonic() - began > 0.2
        while log.refused != 3:
            await trio.lowlevel.checkpoint()
        assert log.seen == []


async def test_who_greets_in_another_way_is_sent_away_at_once() -> None:
    async with open_transports(config=PATIENT) as (far,):
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        for greeting in (b"GET / HTTP/1.1\r\n", b"\0SP\1", b"\0SP\0\0\x10\0\0", GREETING[:7] + b"\1"):
            with crowd(url, 1) as (one,):
                one.sendall(greeting)
                assert await trio.to_thread.run_sync(is_closed, one)


async def test_a_surprise_in_what_reads_greetings_is_the_end_of_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_transports(2, PATIENT) as (near, far):
        (url,) = await far.listen(["tcp://127.0.0.1:0"])

        def fail(*_: object) -> None:
            raise AssertionError

        with monkeypatch.context() as patch, crowd(url, 1) as (one,):
            patch.setattr(SpGreeting, "receive", fail)
            one.sendall(GREETING)
            assert await trio.to_thread.run_sync(is_closed, one)
        way = await near.dial(url, ignore)
        assert way.send_nowait(b"frame")
        assert await receive(far) == b"frame"
        way.close()


async def test_who_ends_within_a_greeting_is_sent_away_at_once() -> None:
    """It is readable from then on: who waited for the rest would look all the time until the place ends."""
    async with open_transports(config=PATIENT) as (far,):
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        for size in (1, 3, 7):
            with crowd(url, 1) as (one,):
                one.sendall(GREETING[:size])
                await trio.sleep(0.05)
                one.shutdown(socket.SHUT_WR)
                assert await trio.to_thread.run_sync(is_closed, one)


async def test_nobody_waits_for_those_who_greet_wrongly_or_hang_up() -> None:
    """nng itself would accept nobody for 100 ms after each of them.  The quickest round shows whether anybody waits."""
    async with open_transports(2, PATIENT) as (near, far):
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        rounds: list[float] = []
        for number in range(40):
            began = time.monotonic()
            with crowd(url, 2) as (one, other):
                one.sendall(b"GET / HTTP")
                other.close()
                way = await near.dial(url, ignore)
                way.send_nowait(b"%d" % number)
                assert await receive(far) == b"%d" % number
                way.close()
            rounds.append(time.monotonic() - began)
        assert min(rounds) < 0.1


async def test_a_greeting_and_a_frame_may_come_byte_by_byte() -> None:
    async with open_transports(config=PATIENT) as (far,):
        log = Log()
        far.observe(log)
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        with crowd(url, 1) as (one,):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in GREETING + struct.pack(">Q", 3) + b"abc":
                one.sendall(bytes((byte,)))
                await trio.sleep(0.002)
            assert await receive(far) == b"abc"
            assert one.recv(8) == ANSWER
            assert list(log.open.values()) == ["127.0.0.1"]


async def test_the_silent_of_one_address_lose_their_places_to_each_other_and_to_nobody_else() -> None:
    async with open_transports(config=PATIENT) as (far,):
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        with crowd(url, 1, "127.0.0.2") as (witness,), crowd(url, PLACES + 20) as strangers:
            assert all(is_closed(one) for one in strangers[:20])
            assert not any(is_closed(one, 0.01) for one in strangers[20:])
            for one in (witness, strangers[-1]):
                one.settimeout(60)
                one.sendall(GREETING)
                assert one.recv(8) == ANSWER


async def test_of_those_who_greet_before_anybody_looks_the_newest_stay() -> None:
    async with open_transports(config=PATIENT) as (far,):
        log = Log()
        far.observe(log)
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        with contextlib.ExitStack() as stack:
            strangers: list[socket.socket] = []
            for _ in range(PLACES + 20):  # and this task does not give others a turn
                (one,) = stack.enter_context(crowd(url, 1))
                one.sendall(GREETING)
                assert one.recv(8) == ANSWER
                strangers.append(one)
            assert all(is_closed(one) for one in strangers[:20])
            await log.wait_open(PLACES)
            assert log.refused == 20
            assert far.statistics().unauthenticated == 0
        async with waiting(far):
            await log.wait_open(0)


async def test_those_that_were_seen_stay_however_many_come_after_them() -> None:
    """It is not for the reception to limit them any more: they have no place there that could end."""
    async with open_transports(config=PATIENT) as (far,):
        log = Log()
        far.observe(log)
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        with contextlib.ExitStack() as stack:
            for number in range(1, PLACES + 21):
                (one,) = stack.enter_context(crowd(url, 1))
                one.sendall(GREETING)
                await log.wait_open(number)
            assert far.statistics().unauthenticated == 0
            assert len(log.open) == PLACES + 20
            assert log.refused == 0


async def test_connections_that_end_leave_nothing_behind() -> None:
    async with open_transports(2, PATIENT) as (near, far):
        log = Log()
        far.observe(log)
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        async with waiting(far):
            for _ in range(100):
                way = await near.dial(url, ignore)
                await log.wait_open(1)
                way.close()
                await log.wait_open(0)
        check_idle(far)


async def test_closing_closes_those_that_wait_and_frees_the_address() -> None:
    async with open_transports(2, PATIENT) as (first, second):
        (url,) = await first.listen(["tcp://127.0.0.1:0"])
        with crowd(url, 2) as strangers:
            first.close()
            first.close()
            assert all(is_closed(one) for one in strangers)
        assert await second.listen([url]) == (url,)


async def test_closing_leaves_the_file_of_another_node_that_comes_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    close = Listener.close

    async with open_transports(3, PATIENT) as (first, second, near):
        (url,) = await first.listen([f"ipc://{place}"])

        def close_and_be_replaced(listener: Listener) -> None:
            monkeypatch.setattr(Listener, "close", close)
            close(listener)
            # A file system may give the other's file the number of the first one.
            assert not place.exists()
            second._arrivals.listen_file(url)

        monkeypatch.setattr(Listener, "close", close_and_be_replaced)
        first.close()
        way = await near.dial(url, ignore)
        way.send_nowait(b"x")
        assert await receive(second) == b"x"
        way.close()


@pytest.mark.parametrize(
    "url", ["tcp://no such host:1", "tcp://\0:1", "tcp://" + "x" * 300 + ":1", "tcp://127.0.0.1:1/x"]
)
async def test_what_nobody_can_listen_at_is_named(url: str) -> None:
    async with open_transports(config=PATIENT) as (transport,):
        with pytest.raises(ConfigError, match="cannot listen at"):
            await transport.listen([url])


@pytest.mark.parametrize("place", ["tcp://{}:0", "ws://{}:0", "ws://{}:0/x", "ws://{}:0/a/b/"])
@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::1]", "localhost"])
async def test_it_listens_at_every_kind_of_address(place: str, host: str) -> None:
    url = place.format(host)
    async with open_transports(2, PATIENT) as (near, far):
        (bound,) = await far.listen([url])
        assert bound == url.replace(":0", f":{bound.rpartition(':')[2].partition('/')[0]}")
        way = await near.dial(bound.replace("*", "127.0.0.1").replace("0.0.0.0", "127.0.0.1"), ignore)
        way.send_nowait(b"x")
        assert await receive(far) == b"x"
        way.close()


class FailingSystem:
    """Makes the next calls of ``accept`` fail, and notes when each call was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: int) -> None:
        accept = socket.socket.accept
        self.errors = list(errors)
        self.calls: list[float] = []

        def fail_first(listening: socket.socket) -> tuple[socket.socket, object]:
            self.calls.append(time.monotonic())
            if self.errors:
                raise OSError(self.errors.pop(0), "")
            return accept(listening)

        monkeypatch.setattr(socket.socket, "accept", fail_first)


async def test_a_connection_that_broke_before_it_was_accepted_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_transports(config=PATIENT) as (far,):
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        system = FailingSystem(monkeypatch, errno.ECONNABORTED, errno.ECONNABORTED)
        with crowd(url, 1) as (one,):
            one.sendall(GREETING)
            assert one.recv(8) == ANSWER
        assert len(system.calls) >= 3
        assert system.calls[2] - system.calls[0] < 0.04, "without a pause"


async def test_without_descriptors_it_pauses_and_says_so_once_whatever_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_transports(config=PATIENT) as (far,):
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        system = FailingSystem(monkeypatch, errno.EMFILE, errno.EMFILE, errno.EBADF)
        with crowd(url, 1) as (one,):
            one.sendall(GREETING)
            assert one.recv(8) == ANSWER
    assert all(later - call >= 0.04 for call, later in itertools.pairwise(system.calls[:4]))
    assert len(caplog.records) == 1
    assert "connections wait, for they cannot be accepted" in caplog.text


class Poll:
    """A poll of descriptors, for which the system may have no room for one more."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.full = False

    def register(self, descriptor: int, events: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "")
        self.poll.register(descriptor, events)

    def __getattr__(self, name: str) -> object:
        return getattr(self.poll, name)


async def test_a_connection_that_cannot_be_watched_is_closed_and_the_node_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poll = Poll()
    with monkeypatch.context() as patch:
        patch.setattr(select, "epoll", lambda: poll)
        far = NetworkTransport(PATIENT)
    try:
        log = Log()
        far.observe(log)
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        with crowd(url, 1) as (one,):
            poll.full = True
            one.sendall(GREETING)
            with trio.fail_after(60):
                while far.statistics().refused != 1:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.01)
            assert one.recv(8) == ANSWER
            assert await trio.to_thread.run_sync(is_closed, one)
        assert not log.open
        check_idle(far)
    finally:
        far.close()


async def test_who_loses_his_place_just_when_he_is_seen_is_told_of_and_then_told_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_transports(config=PATIENT) as (far,):
        log = Log()
        far.observe(log)
        (url,) = await far.listen(["tcp://127.0.0.1:0"])
        seen = Listener.seen
        with crowd(url, 1) as (one,), contextlib.ExitStack() as stack:

            def lose_place(reception: Listener, number: int) -> None:
                stack.enter_context(crowd(url, PLACES))  # each newer one of the address may have it
                while not reception.refused:
                    time.sleep(0.001)
                seen(reception, number)

            monkeypatch.setattr(Listener, "seen", lose_place)
            one.sendall(GREETING)
            assert one.recv(8) == ANSWER
            assert await trio.to_thread.run_sync(is_closed, one)
            await trio.sleep(0.05)
        assert log.closed == log.seen != []
        assert not log.open
        assert far.statistics().reported == 0
