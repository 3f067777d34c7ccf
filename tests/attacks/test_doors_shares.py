"""Shares at the doors: what one token, or all who have none, leave to the others."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- doors run on asyncio
import contextlib
import os
import resource
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from time import thread_time
from typing import Any

import pytest

from iris.doors import processor
from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from iris.doors.mqtt import open_mqtt_door
from iris.doors.tokens import grant
from tests.doors.mqtt import place as mqtt
from tests.doors.mqtt.place import Raw, connect_3, frame, publish_3, subscribe_3, text
from tests.support.async_tests import on_asyncio
from tests.support.doors import Place, Run, dial, rest_of, with_door

pytestmark = pytest.mark.long


def another(place: Any) -> str:
    """Return the token of another client."""
    token = grant(place.tokens, "other", call=(">",), publish=(">",), subscribe=(">",))
    place.clients.reload()
    return token


class Steps:
    """Seconds of a processor of the longest pass of the event loop, while others attack and one asks."""

    def __init__(self) -> None:
        self.longest = 0.0


async def honest(ask: Callable[[], Coroutine[Any, Any, None]], times: int = 20) -> float:
    """Return how much of a processor was used during the median call: all clients run in this process as well."""
    used: list[float] = []
    for _ in range(times):
        began = thread_time()
        await ask()
        used.append(thread_time() - began)
        await asyncio.sleep(0.01)
    return sorted(used)[times // 2]


@asynccontextmanager
async def asking(place: Place, token: str) -> AsyncGenerator[Callable[[], Coroutine[Any, Any, None]]]:
    head = f"POST /request/greeters HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-length: 1\r\n\r\nx"
    async with place.dial() as (reader, writer):

        async def ask() -> None:
            async with asyncio.timeout(10):
                writer.write(head.encode())
                assert (await reader.readuntil(b"\r\n\r\nx")).startswith(b"HTTP/1.1 200")

        yield ask


@contextlib.asynccontextmanager
async def meanwhile(*works: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.sleep(0.3)
        yield
        for task in tasks:
            assert not task.done() or task.exception() is None, task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65_536):
            pass


@with_door()
async def test_one_token_that_pipelines_over_new_connections_holds_up_nobody(place: Place) -> None:
    sent = (place.head("POST", "/request/greeters", "content-length: 1") + b"x") * 10

    async def attack() -> None:
        while True:
            async with place.dial() as (reader, writer):
                writer.write(sent)
                writer.write_eof()
                await read_all(reader)

    async with asking(place, another(place)) as ask, meanwhile(*(attack() for _ in range(16))):
        assert await honest(ask) < 0.06


def test_one_token_with_many_tunnels_of_json_holds_up_nobody(run: Run) -> None:
    import websockets.asyncio.client as websockets

    async def work(place: Place) -> None:
        async def attack() -> None:
            headers = {"authorization": f"Bearer {place.token}"}
            async with websockets.connect(f"ws{place.url[4:]}/tunnel/greeters", additional_headers=headers) as tunnel:
                lent = 0
                while True:
                    said = await tunnel.recv()
                    if isinstance(said, str) and '"credit"' in said:
                        await tunnel.send('{"credit":16}')
                        for _ in range(8):
                            await tunnel.send('{"payload":[' + "1," * 2000 + "1]}")
                    lent += 1

        async with asking(place, another(place)) as ask, meanwhile(*(attack() for _ in range(16))):
            assert await honest(ask) < 0.06

    run(work)


@with_door()
async def test_one_token_that_follows_by_many_streams_holds_up_nobody(place: Place) -> None:
    async def publish() -> None:
        while True:
            for _ in range(20):
                await place.member.publish("a", b"x" * 500)
            await asyncio.sleep(0.005)

    async with AsyncExitStack() as stack:
        followed = [await stack.enter_async_context(place.follow("topic=a")) for _ in range(60)]
        async with asking(place, another(place)) as ask, meanwhile(publish(), *map(read_all, followed)):
            assert await honest(ask) < 0.06


@with_door()
async def test_strangers_that_all_speak_at_once_hold_up_no_client(place: Place) -> None:
    """They came in peace, one by one, and say their first 4 KiB in the same moment."""
    async with AsyncExitStack() as stack, asking(place, another(place)) as ask:
        opened = [await stack.enter_async_context(place.dial()) for _ in range(300)]
        while place.door.statistics().connections < 301:  # noqa: ASYNC110 -- nobody says when they are there
            await asyncio.sleep(0.01)
        await ask()
        head = b"POST /request/greeters HTTP/1.1\r\nhost: a\r\n" + b"x-a: b\r\n" * 240 + b"\r\n"
        for _, writer in opened:
            writer.write(head)
        began = thread_time()
        await ask()
        assert thread_time() - began < 0.15  # of half a second and more that all of them take
        for reader, _ in opened:
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 401")


@with_door("run_mqtt")
async def test_one_token_with_many_connections_of_mqtt_holds_up_nobody(place: mqtt.Place) -> None:
    other = another(place)

    async def attack(number: int) -> None:
        async with place.old_client(f"c{number}") as raw:
            raw.send(subscribe_3(f"x/{number}"))
            while True:
                raw.send(*(publish_3(f"x/{number}", b"y" * 100) for _ in range(50)), b"\xc0\x00")
                while await raw.frame() != b"\xd0\x00":
                    pass

    async with place.dial() as raw, meanwhile(*map(attack, range(40))):
        assert (await raw.join(other)).reason_code == 0

        async def ping() -> None:
            raw.send(b"\xc0\x00")
            async with asyncio.timeout(10):
                assert await raw.frame() == b"\xd0\x00"

        assert await honest(ping) < 0.05


@with_door("run_mqtt", max_connections=40)
async def test_connections_of_one_token_by_mqtt_leave_room_to_the_others(place: mqtt.Place) -> None:
    other = another(place)
    async with AsyncExitStack() as stack:
        for number in range(40):
            reader, writer = await stack.enter_async_context(dial(place.address))
            raw = Raw(reader, writer)
            raw.send(connect_3(place.token, f"c{number}"))
            assert await raw.frame() == (b"\x20\x02\x00\x00" if number < 10 else b"\x20\x02\x00\x03")
        async with place.client("c3"), place.dial() as raw:  # one that comes back has its place
            raw.send(connect_3(other, "me"))
            assert await raw.frame() == b"\x20\x02\x00\x00"


@with_door(limits=ClientLimits(retained=2, retained_bytes=100))
async def test_what_a_client_retains_by_http_and_mqtt_is_in_one_account(place: Place) -> None:
    made = socket.create_server(("127.0.0.1", 0))
    async with (
        open_mqtt_door(place.node, place.clients, sockets=[made]),
        dial(made.getsockname()) as (reader, writer),
        AsyncExitStack() as stack,
    ):
        raw = Raw(reader, writer)
        await stack.enter_async_context(mqtt.storing(place.member))
        assert (await raw.join(place.token)).reason_code == 0

        async def retain(topic: str, payload: bytes) -> int:
            raw.send(frame(0x33, text(topic), b"\x00\x05", b"\x00", payload))
            return (await raw.frame() + b"\x00\x00")[4]

        assert (await place.post("/publish/a?retain=true", b"x" * 50)).status == 204
        assert await retain("b", b"x" * 50) == 0
        assert (await place.post("/publish/c?retain=true", b"x")).status == 429
        assert await retain("d", b"x") == 0x97
        assert await retain("a", b"") == 0  # by the other door
        assert (await place.post("/publish/c?retain=true", b"x" * 50)).status == 204
        assert (await place.post("/publish/c?retain=true", b"x" * 51)).status == 429
        async with place.follow("topic=c") as followed:
            assert b"\n" in await followed.readuntil(b"data: ")
            assert b'"retained":true' in await followed.readline()


@with_door("run_mqtt")
async def test_a_door_for_mqtt_without_descriptors_or_threads_serves_those_who_are_there(
    place: mqtt.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with place.client() as raw, AsyncExitStack() as stack:
        assert await raw.follow("a") == [0]
        late = await stack.enter_async_context(place.dial())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = socket.socket()
        waiting.setblocking(False)
        lowest = os.dup(0)
        os.close(lowest)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                with contextlib.suppress(BlockingIOError):
                    waiting.connect(place.address)
                for number in range(5):
                    raw.send(frame(0x31 if number % 2 else 0x30, text("a"), b"\x00", b"x"))
                    assert (await raw.frame())[0] in (0x30, 0x31)
                    await asyncio.sleep(0.05)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert (await late.join(place.token)).reason_code == 0
            reader, writer = await asyncio.open_connection(sock=waiting)
            again = Raw(reader, writer)
            assert (await again.join(place.token)).reason_code == 0
            writer.close()


@with_door(limits=ClientLimits(bytes=4_000_000))
async def test_who_takes_nothing_by_a_tunnel_costs_its_own_bytes(place: Place) -> None:
    import websockets.asyncio.client as websockets

    headers = {"authorization": f"Bearer {place.token}"}
    async with AsyncExitStack() as stack:
        for _ in range(8):
            connecting = websockets.connect(
                f"ws{place.url[4:]}/tunnel/greeters?operation=stuck", additional_headers=headers
            )
            tunnel = await stack.enter_async_context(connecting)
            for _ in range(10):
                await tunnel.send(b"x" * 100_000)
        async with asking(place, another(place)) as ask:
            await honest(ask, 3)
        assert place.clients.named("web").statistics().bytes <= 4_000_000
        assert place.clients.named("other").statistics().bytes == 0
        place.counted.release.set()
    await place.until_held(0)


@pytest.mark.parametrize("count", [249, 250, 251])
@with_door(door_limits=HttpLimits())
async def test_a_quarter_of_the_connections_is_one_client_s(place: Place, count: int) -> None:
    async with AsyncExitStack() as stack:
        answers: list[bytes] = []
        for _ in range(count):
            reader, writer = await stack.enter_async_context(place.dial())
            writer.write(place.head("POST", "/request/greeters", "content-length: 1") + b"x")
            answers.append((await reader.readline())[9:12])
    assert answers.count(b"200") == min(count, 250)
    assert answers.count(b"429") == max(0, count - 250)


@on_asyncio()
async def test_a_client_that_has_rested_may_be_ahead_by_a_burst_and_no_more() -> None:
    one = processor.Processor()
    for _ in range(1000):
        await one.wait()
    loop, began, turns = asyncio.get_running_loop(), 0.0, 0
    await asyncio.sleep(0.2)
    began = loop.time()
    while loop.time() - began < 0.4:
        await one.wait()
        one.spend(0.004)
        turns += 1
    assert turns * 0.004 <= 0.4 * processor.SHARE + processor.BURST + 0.008


@with_door("run_mqtt")
async def test_connections_of_a_client_that_wait_for_its_turn_keep_nobody_from_coming(place: mqtt.Place) -> None:
    other = another(place)
    async with AsyncExitStack() as stack:
        place.clients.named("sensor").processor.spend(4)
        opened = [await stack.enter_async_context(place.dial()) for _ in range(300)]
        for number, raw in enumerate(opened):
            raw.send(connect_3(place.token, f"c{number}"))
        async with asyncio.timeout(3), place.dial() as raw:
            assert (await raw.join(other)).reason_code == 0
        answers = [await raw.frame() for raw in opened]
        assert answers.count(b"\x20\x02\x00\x00") == answers.index(b"\x20\x02\x00\x03") == 250


def test_a_door_closes_at_once_though_clients_wait_for_a_turn(run: Run, run_mqtt: Run) -> None:
    async def work(place: Place | mqtt.Place) -> None:
        place.clients.unauthenticated.spend(100)
        if isinstance(place, mqtt.Place):
            name, first = "sensor", connect_3(place.token)
        else:
            name, first = "web", place.head("POST", "/request/greeters", "content-length: 0")
        place.clients.named(name).processor.spend(100)
        _, writer = await asyncio.open_connection(*place.address)
        writer.write(first)
        await asyncio.sleep(0.1)
        closing.append(asyncio.get_running_loop().time())
        writer.close()

    for one in (run, run_mqtt):
        closing: list[float] = []
        one(work)
        assert closing


@with_door("run_mqtt")
async def test_a_client_whose_token_goes_while_it_waits_for_its_turn_is_never_welcome(place: mqtt.Place) -> None:
    from iris.doors.tokens import withdraw

    async with place.member.subscribe(">") as events, place.dial() as raw:
        await asyncio.sleep(0.2)
        place.clients.named("sensor").processor.spend(0.3)
        raw.send(connect_3(place.token, "c", will=text("state/c") + text("off")), publish_3("a", b"x"))
        await asyncio.sleep(0.1)
        withdraw(place.tokens, "sensor")
        place.clients.reload()
        assert await raw.end() == b"\x20\x02\x00\x05"
        await place.member.publish("z", 1)
        assert (await anext(aiter(events))).topic == "z"
