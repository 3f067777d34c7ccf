"""The door for nng: what those can do who send too much, read too little, or say what is no nng."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pynng
import pytest

from iris.doors.nng import answering, counters, open_nng_door
from iris.doors.nng.sockets import Room
from iris.kernel.errors import ConfigError
from tests.doors.nng.place import GREETINGS, Place, framed, open_place
from tests.support.async_tests import in_realm, on_asyncio
from tests.support.doors import Run, with_door


async def is_served(place: Place, within: float = 5.0) -> bool:
    """Ask, and survey, as an honest client does."""
    async with asyncio.timeout(within):
        assert await place.ask(b"greeters\nx") == b"200 bytes\nx"
        with await place.socket(pynng.Surveyor0, "surveyor", survey_time=10_000) as socket:
            await socket.asend(b"greeters timeout=4")
            assert (await socket.arecv()).startswith(b"200 json")
    return True


@with_door(max_payload=1000)
async def test_a_message_too_large_is_refused_and_a_huge_one_ends_its_connection(place: Place) -> None:
    with await place.socket(pynng.Req0, "req") as socket:
        for size in (1001, 4000):
            await socket.asend(b"greeters\n" + bytes(size))
            assert await socket.arecv() == b"413 too_large\nthe payload has %d bytes, and may have 1000" % size
    for protocol in GREETINGS:
        async with place.dial(protocol) as raw:
            raw.writer.write(b"\x01" + (1 << 62).to_bytes(8, "big") + b"x")
            assert await raw.is_ended()
    assert await is_served(place)


@on_asyncio()
async def test_messages_that_wait_have_so_many_bytes_together_and_come_in_turn() -> None:
    room, began = Room(10), list[int]()

    async def wait(number: int, size: int, until: asyncio.Event) -> None:
        async with room.reserved(size):
            began.append(number)
            await until.wait()

    ends = [asyncio.Event() for _ in range(5)]
    tasks = [asyncio.create_task(wait(at, size, ends[at])) for at, size in enumerate((6, 4, 3, 20, 1))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (began, room.taken) == ([0, 1], 10)
    tasks[2].cancel()
    ends[1].set()
    await tasks[1]
    await asyncio.sleep(0)
    assert (began, room.taken) == ([0, 1], 6), "the next one is larger than all, and waits to be alone"
    for end in ends:
        end.set()
    await asyncio.wait(tasks)
    assert (began, room.taken) == ([0, 1, 3, 4], 0)


@with_door(patched={"iris.doors.nng.sockets._MESSAGE_TIMEOUT": 0.2}, max_payload=1000)
async def test_one_that_announces_a_message_and_sends_none_is_ended(place: Place) -> None:
    async with place.dial("push") as raw:
        raw.writer.write(b"\x01" + (900).to_bytes(8, "big") + b"x")
        assert await raw.is_ended()
    assert await is_served(place)


@with_door(max_connections=2)
async def test_connections_beyond_the_limit_are_turned_away(place: Place) -> None:
    async with place.dial("req"), place.dial("req"):
        async with place.dial("req") as third:
            assert await third.is_ended()
        assert place.door.statistics().turned_away == 1
        async with place.dial("surveyor"):
            await place.connected("surveyor")
    await place.connected("req", 0)
    assert await is_served(place)


def test_a_thousand_idle_clients_disturb_nobody(run: Run) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this machine lets a process have {hard} files: both ends of 1,000 connections need 2,200")

    async def work(place: Place) -> None:
        async with AsyncExitStack() as stack:
            for _ in range(999):
                await stack.enter_async_context(place.dial("req"))
            await place.connected("req", 999)
            for _ in range(10):
                began = time.monotonic()
                assert await place.ask(b"greeters\nx") == b"200 bytes\nx"
                assert time.monotonic() - began < 1
                await place.connected("req", 999)
            last = await stack.enter_async_context(place.dial("req"))
            async with place.dial("req") as refused:
                assert await refused.is_ended()
            last.ask(b"greeters\nx")
            assert await last.hear() == b"\x80\0\0\x01200 bytes\nx"

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        run(work)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@with_door()
async def test_a_connection_has_so_many_calls_at_a_time_and_others_have_theirs(place: Place) -> None:
    limit = answering.CALLS_OF_ONE
    async with place.dial("req") as greedy:
        for number in range(limit + 10):
            greedy.ask(b"greeters operation=never timeout=50", number)
        refusals = [await greedy.hear() for _ in range(10)]
        assert {one[4:] for one in refusals} == {
            b"429 too_many_calls retry_after=1\n%d calls at a time are the limit of a connection" % limit
        }
        assert await is_served(place)
    await place.until(lambda: place.door.statistics().given_up == limit)


@with_door(patched={"iris.doors.nng.answering._PATIENCE": 1.0})
async def test_who_does_not_take_answers_holds_up_nobody_and_is_ended(place: Place) -> None:
    async with place.dial("req") as lazy:
        lazy.stop_reading()
        for number in range(8):
            lazy.ask(b"greeters\n" + bytes(500_000), number)
        await place.connected("req", 1)
        assert await is_served(place)
        await place.until(lambda: place.door.statistics().stalled == 1)
    assert await is_served(place)


@with_door(patched={"iris.doors.nng.answering.WORKERS": 24, "iris.doors.nng.answering._UNTAKEN": 8})
async def test_of_many_who_take_no_answers_those_are_ended_that_keep_the_door_longest(place: Place) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(20):
            lazy = await stack.enter_async_context(place.dial("req"))
            lazy.stop_reading()
            for number in range(12):
                lazy.ask(b"greeters\n" + bytes(500_000), number)
        await place.until(lambda: place.door.statistics().stalled > 3)
        for _ in range(20):
            assert await is_served(place)


@with_door()
async def test_half_a_message_holds_up_nobody(place: Place) -> None:
    async with AsyncExitStack() as stack:
        for protocol in ("req", "surveyor", "push"):
            for size in (3, 9, 200):
                raw = await stack.enter_async_context(place.dial(protocol))
                raw.writer.write(framed(bytes(300))[:size])
        assert await is_served(place)


@with_door()
async def test_what_is_no_nng_or_another_protocol_costs_its_connection(place: Place) -> None:
    for protocol in GREETINGS:
        for greeting in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0SP\0\0\x10\0\0",
            b"\x16\x03\x01" + bytes(300),
            b"\0SP\1" + bytes(8),
        ):
            async with place.dial(protocol, greeting) as raw:
                assert await raw.is_ended()
    assert await is_served(place)
    for protocol in GREETINGS:
        await place.connected(protocol, 0)
    assert place.door.statistics().turned_away == 0


@pytest.mark.parametrize("seed", range(3))
def test_no_bytes_of_a_client_end_the_door(run: Run, seed: int) -> None:
    chance = random.Random(seed)
    words = (
        b"greeters|orders|json|text|msgpack|bytes|=|timeout=|1e400|operation=|key=|\n| |\xff|\xc1|{|-1|retain=true|\0"
    ).split(b"|")
    words += [b"[" * 3000]

    def body() -> bytes:
        if chance.random() < 0.3:
            return chance.randbytes(chance.randrange(60))
        return b"".join(chance.choice(words) + chance.choice((b"", b" ")) for _ in range(chance.randrange(8)))

    def frame() -> bytes:
        stack = b"".join(chance.randbytes(4) for _ in range(chance.randrange(4)))
        whole = framed(stack + b"\x80\0\0\x01" + body() if chance.random() < 0.8 else body())
        return whole if chance.random() < 0.9 else whole[: chance.randrange(len(whole))] + chance.randbytes(9)

    async def attack(place: Place) -> None:
        for _ in range(40):
            async with place.dial(chance.choice([*GREETINGS])) as raw:
                with contextlib.suppress(OSError):
                    for _ in range(chance.randrange(12)):
                        raw.writer.write(frame())
                    await asyncio.sleep(chance.choice((0, 0.002)))

    async def work(place: Place) -> None:
        await asyncio.gather(*(attack(place) for _ in range(4)))
        assert await is_served(place)
        with await place.socket(pynng.Push0, "push") as push:
            async with place.member.subscribe("well") as events:
                await push.asend(b"well\nx")
                assert (await anext(events)).payload == b"x"
        for protocol in GREETINGS:
            await place.connected(protocol, 0)

    run(work)


def test_an_answer_that_fails_costs_one_message(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counters, "_PAUSE", 0.01)
    give = answering.Answering._give
    failed: list[object] = []

    async def fail_first(self: Any, *arguments: Any) -> None:
        if len(failed) < 2:
            failed.append(self)
            raise ZeroDivisionError
        await give(self, *arguments)

    monkeypatch.setattr(answering.Answering, "_give", fail_first)

    async def work(place: Place) -> None:
        for number in range(2):
            with await place.socket(pynng.Req0, "req", recv_timeout=300) as socket:
                await socket.asend(b"greeters")
                while len(failed) <= number:  # a busy machine takes longer
                    with pytest.raises(pynng.Timeout):
                        await socket.arecv()
            assert len(failed) == number + 1
        assert await is_served(place)

    run(work)
    assert caplog.text.count("an answer has failed, and begins anew") == 2


@with_door()
async def test_no_file_is_taken_away_to_listen(place: Place, tmp_path: Path) -> None:
    (tmp_path / "x.push").write_text("precious")
    (tmp_path / "y.sub").symlink_to(tmp_path / "x.push")
    for name in ("x", "y"):
        with pytest.raises(ConfigError, match="there is a file that is no socket: move it, or give another path"):
            async with open_nng_door(place.node, place.clients, f"ipc://{tmp_path}/{name}", "tools"):
                pass
    assert (tmp_path / "x.push").read_text() == "precious"
    assert (tmp_path / "y.sub").is_symlink()
    assert await is_served(place)


@in_realm
async def test_a_door_that_closes_stops_what_it_does(tmp_path: Path) -> None:
    async with open_place(tmp_path) as place:
        asking = [asyncio.ensure_future(place.ask(b"greeters operation=never timeout=50")) for _ in range(3)]
        await place.until(lambda: place.door.statistics().connections["req"] == 3)
        await place.counted.working.wait()
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)
    assert place.counted.stopped


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("tcp://127.0.0.1:7000", "write ipc:///PATH or tls\\+tcp://HOST:PORT"),
        ("tls+tcp://127.0.0.1", "write ipc:///PATH or tls\\+tcp://HOST:PORT"),
        ("tls+tcp://127.0.0.1:65533", "from this one on: it is too high"),
        ("tls+tcp://127.0.0.1:0", "takes a certificate, its private key and the CA"),
        ("ipc://relative", "write ipc:///PATH"),
        ("ipc:///" + "x" * 110, "at most 98 bytes"),
        ("ipc:///no/such/directory/door", "cannot listen at ipc:///no/such/directory/door.req"),
    ],
)
@with_door()
async def test_where_a_door_cannot_be_is_told(place: Place, url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        async with open_nng_door(place.node, place.clients, url, "tools"):
            pass
    with pytest.raises(ConfigError, match="there is no client nobody"):
        async with open_nng_door(place.node, place.clients, "ipc:///x", "nobody"):
            pass


@with_door()
async def test_where_another_door_listens_none_is_opened_and_that_one_stays(place: Place) -> None:
    url = place.door.addresses["req"].removesuffix(".req")
    with pytest.raises(ConfigError, match=r"cannot listen at .*in use"):
        async with open_nng_door(place.node, place.clients, url, "tools"):
            pass
    assert await is_served(place)
