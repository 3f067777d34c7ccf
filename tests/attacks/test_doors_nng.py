"""The door for nng: odd messages, limits, rights that change, slow readers, and what a machine is short of."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- doors run on asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import iris
from iris.doors.nng.messages import MAX_LINE
from iris.doors.tokens import grant, withdraw
from tests.doors.nng.place import Place, Raw, framed, open_place
from tests.support.doors import Run, runner, with_door

pytestmark = pytest.mark.long

HUGE = "9" * 1900


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(tmp_path, monkeypatch, open_place, within=60)


NUMBERS = [
    "1e400",
    "nan",
    "-1",
    "0",
    HUGE,
    "-" + HUGE,
    "1_0",
    "\u0663",
    "",
    "5e-324",
    "=",
    "1=1",
    "true",
    "+1",
    "49.99999999999999999",
]


@pytest.mark.parametrize("protocol", ["req", "surveyor"])
@with_door()
async def test_no_option_is_an_error_of_the_door(place: Place, protocol: str, silent_log: None) -> None:
    names = {"req": ("timeout", "wait", "hedge"), "surveyor": ("timeout", "wait", "count", "quiet")}
    async with place.dial(protocol) as raw:
        for name in names[protocol]:
            for value in NUMBERS:
                more = " idempotent=true" if name == "hedge" else ""
                short = " timeout=0.2" if name != "timeout" else ""
                raw.ask(f"greeters text {name}={value}{more}{short}\nx".encode())
                async with asyncio.timeout(10):
                    answer = (await raw.hear())[4:]
                assert answer[:3] in (b"200", b"400", b"504", b"404"), (name, value[:20], answer[:80])


ODD = [
    b"", b"\n", b" ", b"greeters", b"greeters\r\nx", b"greeters  text\nx", b"\xff\n",
    b"greeters " + b"a" * 3000 + b"\n",
    b"greeters text text\nx", b"greeters json\n", b"greeters msgpack\n\xc1", b"greeters json\n" + b"[" * 100_000,
    b"greeters msgpack\n" + b"\x91" * 5000, b"greeters text\n\xff",
    b"a" * MAX_LINE + b"\nx", b"a" * (MAX_LINE + 1) + b"\nx",
    b"greeters operation=\nx", b"greeters operation=a/b\nx", b"greeters priority=none\nx", b"greeters prefer_site=\nx",
    b"greeters key=" + b"k" * 300 + b"\nx", b"acme/greeters\nx", b"greeters@nowhere\nx", b">\nx", b"greeters\x00\nx",
]  # fmt: skip


@pytest.mark.parametrize("protocol", ["req", "surveyor"])
@with_door()
async def test_each_odd_message_has_an_answer_and_the_next_one_too(
    place: Place, protocol: str, silent_log: None
) -> None:
    async with place.dial(protocol) as raw:
        for number, data in enumerate(ODD):
            raw.ask(data, number + 1)
            async with asyncio.timeout(15):
                head, answer = await _answer(raw)
            assert head == (number + 1) | 1 << 31
            assert answer[:3] in (b"200", b"400", b"404", b"501", b"403", b"502"), (data[:40], answer[:100])


async def _answer(raw: Raw) -> tuple[int, bytes]:
    data = await raw.hear()
    return int.from_bytes(data[:4], "big"), data[4:]


@pytest.mark.parametrize("protocol", ["req", "surveyor", "push"])
@with_door()
async def test_frames_that_no_program_of_nng_sends_end_nothing_but_their_connection(
    place: Place, protocol: str, silent_log: None
) -> None:
    frames = [
        framed(b""), framed(b"\x00"), framed(b"\x80\x00\x00"),
        framed(b"\x00\x00\x00\x01" * 20), framed(b"\x00\x00\x00\x01" * 300),
        b"\x02" + (5).to_bytes(8, "big") + b"hello", b"\x01" + b"\xff" * 8, b"\x01" + (1 << 62).to_bytes(8, "big"),
        b"\x01\x00", b"\x00" * 100, b"\x01" + (3 << 20).to_bytes(8, "big"),
    ]  # fmt: skip
    async with AsyncExitStack() as stack:
        for one in frames:
            raw = await stack.enter_async_context(place.dial(protocol))
            raw.writer.write(one)
        async with asyncio.timeout(15):
            assert (await place.ask(b"greeters\nx")) == b"200 bytes\nx"
    await place.connected(protocol, 0)
    async with asyncio.timeout(15):
        assert (await place.ask(b"greeters\nx")) == b"200 bytes\nx"


@pytest.mark.parametrize("extra", [-1, 0, 1])
@with_door(max_payload=1000)
async def test_a_payload_at_the_limit_is_taken_and_one_byte_more_is_told(place: Place, extra: int) -> None:
    async with place.dial("req") as raw, place.dial("push") as pushing, place.member.subscribe("a") as events:
        await asyncio.sleep(0.2)
        raw.ask(b"greeters\n" + b"x" * (1000 + extra))
        answer = (await raw.hear())[4:]
        assert answer[:3] == (b"413" if extra > 0 else b"200")
        pushing.writer.write(framed(b"a\n" + b"x" * (1000 + extra)) + framed(b"a\nlast"))
        async with asyncio.timeout(10):
            first = await anext(aiter(events))
        assert len(first.payload) == (4 if extra > 0 else 1000 + extra)
        await place.until(lambda: place.door.statistics().refused[413] == 2 * (extra > 0))


@with_door()
async def test_a_pipe_that_stays_open_has_what_the_token_that_is_there_now_permits(place: Place) -> None:
    async with (
        place.dial("req") as raw,
        place.dial("push") as pushing,
        place.dial("sub") as sub,
        place.member.subscribe(">") as events,
    ):
        heard: list[bytes] = []

        async def listen() -> None:
            while True:
                heard.append(await sub.hear())

        listening = asyncio.ensure_future(listen())
        taking = aiter(events)
        pushing.writer.write(framed(b"p.a\n1"))
        assert (await anext(taking)).topic == "p.a"
        await place.connected("sub")
        while not any(b"s.a" in one for one in heard):
            await place.member.publish("s.a", b"x")
            await asyncio.sleep(0.05)
        grant(place.tokens, "tools", call=("nobody",), publish=("q.>",), subscribe=("t.>",))
        place.clients.reload()
        raw.ask(b"greeters\nx")
        assert (await raw.hear())[4:].startswith(b"403")
        pushing.writer.write(framed(b"p.a\n2") + framed(b"q.a\n3"))
        while not any(b"t.a" in one for one in heard):
            await place.member.publish("s.secret", b"x")
            await place.member.publish("t.a", b"x")
            await asyncio.sleep(0.05)
        assert not any(b"s.secret" in one for one in heard)
        withdraw(place.tokens, "tools")
        place.clients.reload()
        await asyncio.sleep(0.1)
        count = len(heard)
        pushing.writer.write(framed(b"q.a\n4"))
        raw.ask(b"nobody\nx")
        assert (await raw.hear())[4:].startswith(b"401")
        for _ in range(5):
            await place.member.publish("t.a", b"late")
        await asyncio.sleep(0.3)
        assert len(heard) == count
        await place.member.publish("z", 1)
        topics = [event.topic async for event in _until_z(taking)]
        assert [one for one in topics if one[0] in "pq"] == ["q.a"]
        listening.cancel()
        await asyncio.wait([listening])


async def _until_z(taking: AsyncIterator[iris.Event]) -> AsyncIterator[iris.Event]:
    async for event in taking:
        if event.topic == "z":
            return
        yield event


@with_door()
async def test_a_door_for_nng_needs_no_thread_for_what_is_asked(
    place: Place, monkeypatch: pytest.MonkeyPatch, silent_log: None
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        async with place.dial("req") as raw, place.dial("surveyor") as surveying, place.dial("push") as pushing:
            raw.ask(b"greeters\nx")
            assert (await raw.hear())[4:] == b"200 bytes\nx"
            surveying.ask(b"greeters timeout=0.2\nx")
            assert (await surveying.hear())[4:].startswith(b"200 json")
            pushing.writer.write(framed(b"a retain=true\n1"))
            await place.until(lambda: place.door.statistics().published == 1)


@with_door()
async def test_those_who_push_without_end_leave_time_for_requests(place: Place) -> None:
    """By nng all are one client: its turns go round."""
    async with AsyncExitStack() as stack:
        for _ in range(8):
            pushing = await stack.enter_async_context(place.dial("push"))
            pushing.writer.write(framed(b'a json\n{"a":[1,2,3]}') * 2000)
        async with place.dial("req") as raw:
            for number in range(10):
                raw.ask(b"greeters\nx", number + 1)
                async with asyncio.timeout(5):
                    assert (await raw.hear())[4:] == b"200 bytes\nx"
