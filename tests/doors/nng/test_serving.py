"""Programs of nng that serve a cluster: REP and RESPONDENT, balanced, lost, slow, and wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pynng
import pytest

import iris
from iris.doors import withdraw
from iris.doors.nng import open_nng_door
from iris.doors.nng.messages import MAX_SENT, read_answer
from iris.doors.problems import Problem
from iris.kernel.errors import ConfigError
from tests.doors.nng.place import NNGCAT, SERVING_GREETINGS, Place, Raw, framed
from tests.support.doors import with_door

RIGHTS: Any = {"call": ("orders",), "serve": ("orders",)}
SERVING: Any = {"rights": RIGHTS, "serve": ("orders",)}


async def next_request(raw: Raw) -> tuple[bytes, list[str], bytes]:
    """Return the number of a request, the words of its line, and its payload."""
    heard = await raw.hear()
    line, _, payload = heard[4:].partition(b"\n")
    return heard[:4], line.decode().split(), payload


def answer(raw: Raw, number: bytes, data: bytes) -> None:
    raw.writer.write(framed(number + data))


@asynccontextmanager
async def replying(place: Place, kind: type[pynng.Socket], protocol: str, answer: bytes) -> AsyncGenerator[list[bytes]]:
    """Serve as a REP or RESPONDENT of nng does, for the length of the block; yields what it has got."""
    seen: list[bytes] = []

    async def serve(socket: pynng.Socket) -> None:
        with suppress(pynng.Closed):
            while True:
                seen.append(await socket.arecv())
                await socket.asend(answer)

    with await place.socket(kind, f"orders.{protocol}") as socket:
        serving = asyncio.ensure_future(serve(socket))
        yield seen
    await serving


@pytest.mark.parametrize(("kind", "protocol"), [(pynng.Rep0, "rep"), (pynng.Respondent0, "respondent")])
@with_door(**SERVING)
async def test_a_program_of_nng_answers_requests_and_surveys(
    place: Place, kind: type[pynng.Socket], protocol: str
) -> None:
    async with replying(place, kind, protocol, b'200 json\n{"cups": 2}') as seen:
        reply = await place.member.request("orders", {"tea": 1}, operation="brew", wait=30)
        assert reply == {"cups": 2}
        line, payload = seen[0].split(b"\n", 1)
        words = line.decode().split()
        assert (words[:3], words[4:], payload) == (
            ["orders", "json", "sender=greeters"], ["operation=brew"], b'{"tea":1}'
        )  # fmt: skip
        assert 0 < float(words[3].removeprefix("timeout=")) <= 5
        async with place.member.survey("orders", b"\x00") as answers:
            assert [one.payload async for one in answers] == [{"cups": 2}]
        assert seen[1].split(b"\n", 1)[1] == b"\x00"
        with pytest.raises(iris.TunnelBroken):
            async with place.member.open_tunnel("orders") as tunnel:
                await tunnel.receive()
    await place.connected(f"orders.{protocol}", 0)


@with_door(**SERVING)
async def test_two_programs_share_the_requests_and_the_door_asks_itself(place: Place) -> None:
    async with (
        replying(place, pynng.Rep0, "rep", b"200 text\nfirst") as first,
        replying(place, pynng.Rep0, "rep", b"200 text\nsecond") as second,
    ):
        await place.connected("orders.rep", 2)
        assert (await place.ask(b"orders\nx")).startswith(b"200 text\n")
        for _ in range(50):
            await asyncio.gather(*(place.member.request("orders", None, wait=30) for _ in range(4)))
        assert len(first) + len(second) == 201
        assert min(len(first), len(second)) > 60


@with_door(max_payload=1000, **SERVING)
async def test_an_error_of_a_program_reaches_the_caller(place: Place) -> None:
    async with place.dial("orders.rep") as raw:
        for said, code, text in (
            (b"502 out-of-tea retry_after=1\nnone left", "out-of-tea", "none left"),
            (b"what is this", "malformed", "200 and its form"),
            (b"200 poem\nx", "malformed", "is no form"),
            (b"200 bytes\n" + bytes(1001), "too_large", "1001 bytes"),
        ):
            asking = asyncio.ensure_future(place.member.request("orders", None, wait=30))
            number, _, _ = await next_request(raw)
            answer(raw, number, said)
            with pytest.raises(iris.RemoteError, match=text) as caught:
                await asking
            assert caught.value.code == code
        assert place.door.statistics().refused == {400: 2, 413: 1}


@with_door(**SERVING)
async def test_a_request_at_a_lost_program_goes_on_at_another_if_it_is_idempotent(place: Place) -> None:
    async with place.dial("orders.rep") as second:
        async with place.dial("orders.rep") as first:
            await place.connected("orders.rep", 2)
            again = iris.RequestOptions(idempotent=True)
            asking = [
                asyncio.ensure_future(place.member.request("orders", None, options=again, timeout=30, wait=30))
                for _ in range(2)
            ]
            await next_request(first)
            number, _, _ = await next_request(second)
        answer(second, number, b"200 text\nmine")
        number, _, _ = await next_request(second)
        answer(second, number, b"200 text\nmine")
        assert await asyncio.gather(*asking) == ["mine", "mine"]
        failing = asyncio.ensure_future(place.member.request("orders", None))
        await next_request(second)
    with pytest.raises(iris.Unknown):
        await failing


@with_door(**SERVING)
async def test_answers_to_nothing_and_late_ones_change_nothing(place: Place) -> None:
    async with place.dial("orders.respondent") as raw:
        await place.connected("orders.respondent")
        answer(raw, b"\x80\0\0\x07", b"200 text\nfor nobody")
        with pytest.raises(iris.RequestTimeout):
            await place.member.request("orders", None, timeout=0.2, wait=30)
        late, _, _ = await next_request(raw)
        answer(raw, late, b"200 text\nlate")
        asking = asyncio.ensure_future(place.member.request("orders", None))
        number, _, _ = await next_request(raw)
        answer(raw, number, b"200 text\nin time")
        answer(raw, number, b"200 text\ntwice")
        assert await asking == "in time"
        assert place.clients.named("tools").statistics().bytes == 0


@with_door(**SERVING)
async def test_a_program_that_does_not_read_is_not_sent_a_second_request(place: Place) -> None:
    """What its socket does not take counts among the bytes of the client, once, and until it has ended."""
    async with place.dial("orders.rep") as raw:
        raw.stop_reading()
        await place.connected("orders.rep")
        for _ in range(3):
            with pytest.raises(iris.RequestTimeout):
                await place.member.request("orders", bytes(MAX_SENT - 1000), timeout=0.3, wait=30)
        assert MAX_SENT // 2 < place.clients.named("tools").statistics().bytes <= MAX_SENT
    await place.until(lambda: place.clients.named("tools").statistics().bytes == 0)


@with_door(**SERVING)
async def test_a_request_that_no_socket_of_nng_takes_is_refused(place: Place) -> None:
    async with place.dial("orders.rep"):
        with pytest.raises(iris.RemoteError, match="takes 1048576 at most") as caught:
            await place.member.request("orders", bytes(MAX_SENT), wait=30)
        assert caught.value.code == "too_large"


@with_door(**SERVING)
async def test_who_has_no_right_opens_no_door_and_who_loses_it_serves_no_more(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="client tools may not serve 'tills'"):
        async with open_nng_door(
            place.node, place.clients, f"ipc://{tmp_path}/other", "tools", serve=("orders", "tills")
        ):
            pass
    async with place.dial("orders.rep") as raw:
        await place.connected("orders.rep")
        withdraw(place.tokens, "tools")
        place.clients.reload()
        assert await raw.is_ended()
    async with place.dial("orders.rep") as raw:
        assert await raw.is_ended()
    await place.until(lambda: place.door.statistics().refused[401] == 2)


@with_door(rights=RIGHTS)
async def test_the_door_waits_for_a_program_when_it_closes(place: Place) -> None:
    async with open_nng_door(
        place.node,
        place.clients,
        place.door.addresses["req"].removesuffix(".req") + "2",
        "tools",
        serve=("orders",),
    ) as door:
        path = door.addresses["orders.rep"].removeprefix("ipc://")
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(SERVING_GREETINGS["orders.rep"])
        await reader.readexactly(8)
        raw = Raw(reader, writer)
        asking = asyncio.ensure_future(place.member.request("orders", None, wait=30))
        number, _, _ = await next_request(raw)
        asyncio.get_running_loop().call_later(0.2, answer, raw, number, b"200 text\ndone")
    assert await asking == "done"
    assert await raw.is_ended()
    writer.close()


@NNGCAT
@with_door(**SERVING)
async def test_nngcat_serves(place: Place) -> None:
    process = await place.start_nngcat("orders.rep", "--raw", "--data", "200 text\nby nngcat")
    try:
        assert await place.member.request("orders", "who?", wait=30) == "by nngcat"
    finally:
        process.kill()
        await process.communicate()


def test_answers_are_read_by_one_rule() -> None:
    assert read_answer(b"200\nx", 1) == b"x"
    assert read_answer(b"200 json\n[1]", 3) == [1]
    for wrong in (b"", b"201 text\nx", b"404", b"404 two/parts", b"0404 x", b"600 x", b"\xff\xff", b"404 " + b"x" * 65):
        with pytest.raises(Problem):
            read_answer(wrong, 10)
    with pytest.raises(iris.RemoteError) as caught:
        read_answer(b"404 gone\n" + b"x" * 2000, 10)
    assert len(caught.value.message) == 1024
