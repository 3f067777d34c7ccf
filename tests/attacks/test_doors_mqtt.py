"""The door for MQTT: sizes and times at their limits, wills between doors, and rights that change."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- doors run on asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import thread_time

import mqtt5
import pytest

import iris.aio
from iris.doors.clients import ClientLimits
from iris.doors.mqtt import open_mqtt_door
from iris.doors.tokens import grant, withdraw
from iris.patterns.pubsub.subscribe import Event
from iris.testing import inspect
from tests.doors.mqtt.place import (
    Ended,
    Place,
    Raw,
    connect_3,
    frame,
    open_place,
    publish_3,
    storing,
    subscribe_3,
    text,
)
from tests.support.doors import Run, dial, rest_of, runner, with_door

pytestmark = pytest.mark.long


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(tmp_path, monkeypatch, open_place, within=60)


@asynccontextmanager
async def other_door(place: Place) -> AsyncGenerator[tuple[str, int]]:
    """Open another door of the same realm and tokens, by another node."""
    made = socket.create_server(("127.0.0.1", 0))
    async with (
        iris.aio.open_node("door") as node,
        open_mqtt_door(node, place.clients, sockets=[made]) as door,
    ):
        here, there = place.node, node
        while not (  # noqa: ASYNC110 -- no one says when they know each other
            "iris.door.mqtt" in inspect(here).subscribers and "iris.door.mqtt" in inspect(there).subscribers
        ):
            await asyncio.sleep(0.01)
        assert door is not None
        yield made.getsockname()


def connect_5(token: str, *properties: bytes, client_id: str = "c", flags: int = 0xC2, will: bytes = b"") -> bytes:
    told = b"".join(properties)
    head = text("MQTT") + bytes((5, flags)) + b"\x00\x3c" + bytes((len(told),)) + told
    return frame(0x10, head, text(client_id), will, text("u"), text(token))


@pytest.mark.parametrize("size", [1, 2, 4, 5, 10, 20, 27, 28, 60])
@with_door()
async def test_no_packet_is_larger_than_a_client_takes(place: Place, size: int, silent_log: None) -> None:
    """The first one too: a client that cannot receive what it must know is not connected."""
    async with place.dial() as raw, place.dial() as refused:
        raw.send(connect_5(place.token, b"\x27" + size.to_bytes(4, "big")))
        raw.send(frame(0x82, b"\x00\x01\x00", text("a" * 20), b"\x00"), b"\xc0\x00")
        raw.send(frame(0x32, text("$bad/topic"), b"\x00\x02", b"\x00"), b"\xc0\x00", b"\xe0\x00")
        refused.send(connect_5(place.token, b"\x27" + size.to_bytes(4, "big"), b"\x15" + text("x")))
        for one in (raw, refused):
            try:
                async with asyncio.timeout(10):
                    while True:
                        data = await one.frame()
                        assert len(data) <= size, data
            except Ended:
                pass


@pytest.mark.parametrize("size", [0, 1, 120, 121, 122, 16_370, 16_376, 16_377, 16_378, 65_536, 1 << 20])
@pytest.mark.parametrize("qos", [0, 1])
@with_door()
async def test_a_payload_of_each_length_of_the_length_goes_both_ways(place: Place, size: int, qos: int) -> None:
    async with place.old_client() as raw, storing(place.member):
        raw.send(subscribe_3("a/b"))
        await raw.frame()
        raw.send(publish_3("a/b", b"x" * size, qos=qos))
        got = [await raw.frame() for _ in range(1 + qos)]
        assert publish_3("a/b", b"x" * size) in got


@pytest.mark.parametrize(
    "packet",
    [b"\xc0\x80\x00", b"\xc0\x80\x80\x80\x00", b"\x30\x84\x80\x80\x00\x00\x01a1", b"\xe0\x81\x00\x00"],
)
@with_door()
async def test_a_length_with_more_bytes_than_it_needs_is_an_end_or_what_it_says(
    place: Place, packet: bytes, silent_log: None
) -> None:
    async with place.old_client() as raw:
        raw.send(packet, b"\xc0\x00")
        data = b""
        try:
            async with asyncio.timeout(5):
                while True:
                    data += await raw.frame()
                    if data in (b"\xd0\x00", b"\xd0\x00\xd0\x00"):
                        break
        except Ended:
            pass
    async with place.client() as raw:
        raw.send(b"\xc0\x00")
        assert await raw.frame() == b"\xd0\x00"


@with_door()
async def test_the_properties_of_a_connect_at_their_limits_are_taken_or_refused(place: Place, silent_log: None) -> None:
    for told, good in (
        (b"\x21\x00\x01", True), (b"\x21\x00\x00", False), (b"\x27\x00\x00\x00\x00", False),
        (b"\x27\xff\xff\xff\xff", True), (b"\x11\xff\xff\xff\xff", True), (b"\x22\xff\xff", True),
        (b"\x17\x02", False), (b"\x17\x01\x17\x01", False),
        (b"\x19\x01", True), (b"\x26" + text("a") + text("b"), True),
        (b"\x26" + text("a") + text("\x00"), False), (b"\x0b\x01", False), (b"\x99", False), (b"\x80\x01", False),
    ):  # fmt: skip
        async with place.dial() as raw:
            raw.send(connect_5(place.token, told))
            answer = await raw.frame()
            assert (answer[0] == 0x20 and answer[3] == 0) is good, (told, answer)


@with_door()
async def test_more_than_the_window_of_qos_1_at_once_is_answered_whole(place: Place) -> None:
    """A client that ignores the receive maximum, and reads late, has each answer once and in order."""
    async with place.client() as raw, storing(place.member) as stored:
        raw.send(*(frame(0x32, text("a"), n.to_bytes(2, "big"), b"\x00", b"%d" % n) for n in range(1, 1001)))
        answers = [int.from_bytes((await raw.frame())[2:4], "big") for _ in range(1000)]
        assert answers == list(range(1, 1001))
        await place.until(lambda: len(stored) >= 1000)
    assert place.clients.named("sensor").statistics().bytes == 0


@pytest.mark.parametrize(("keep_alive", "level"), [(1, 4), (1, 5)])
@with_door()
async def test_a_client_that_pings_just_in_time_stays_and_one_that_does_not_is_ended(
    place: Place, keep_alive: int, level: int
) -> None:
    loop = asyncio.get_running_loop()
    async with place.dial() as raw:
        if level == 4:
            raw.send(connect_3(place.token, keep_alive=keep_alive))
            await raw.frame()
        else:
            assert (await raw.join(place.token, keep_alive=keep_alive)).server_keep_alive is None
        for _ in range(2):
            await asyncio.sleep(0.9)
            raw.send(b"\xc0\x00")
            assert await raw.frame() == b"\xd0\x00"
        began = loop.time()
        await raw.end()
        assert 1.2 < loop.time() - began < 8


@with_door()
async def test_a_session_ends_when_its_token_is_replaced_by_one_with_less(place: Place) -> None:
    async with place.client("c") as raw, place.old_client("d") as old:
        assert await raw.follow("a/b", "c/d") == [0, 0]
        old.send(subscribe_3("a/b"))
        await old.frame()
        token = grant(place.tokens, "sensor", publish=("a.b",), subscribe=("a.b",))
        place.clients.reload()
        await place.member.publish("c.d", b"secret")
        assert b"secret" not in await raw.end()
        assert b"secret" not in await old.end()
        async with place.dial() as again:
            assert (await again.join(token, "c")).reason_code == 0
            assert await again.follow("a/b", "c/d", "#") == [0, 0x87, 0x87]


@pytest.mark.parametrize("how", ["withdrawn", "replaced", "less", "lost"])
@with_door()
async def test_a_will_is_published_once_by_the_rights_that_are_left(place: Place, how: str) -> None:
    async with place.member.subscribe(">") as events, place.dial() as raw:
        await asyncio.sleep(0.2)
        raw.send(connect_3(place.token, "c", will=text("state/c") + text("off")))
        await raw.frame()
        if how == "withdrawn":
            withdraw(place.tokens, "sensor")
        elif how == "less":
            grant(place.tokens, "sensor", publish=("other",))
        elif how == "replaced":
            grant(place.tokens, "sensor", publish=("state.c",))
        if how == "lost":
            raw.writer.transport.abort()
        else:
            place.clients.reload()
            await raw.end()
        await place.until(lambda: place.door.statistics().connections == 0)
        await place.member.publish("z", 1)
        got = [event.topic async for event in _until(events, "z")]
        assert got == (["state.c"] if how in ("replaced", "lost") else [])


async def _until(events: iris.aio.Subscription, topic: str) -> AsyncGenerator[Event]:
    async for event in events:
        if event.topic == topic:
            return
        yield event


@with_door()
async def test_one_identifier_that_comes_to_two_doors_in_turns_has_one_connection_and_each_will_before_what_follows(
    place: Place,
) -> None:
    said: list[object] = []
    async with other_door(place) as there, place.member.subscribe("state.>") as events, AsyncExitStack() as stack:

        async def listen() -> None:
            async for event in events:
                said.append(event.payload)  # noqa: PERF401 -- it never ends

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0.3)
        for number in range(10):
            address = place.address if number % 2 else there
            reader, writer = await stack.enter_async_context(dial(address))
            raw = Raw(reader, writer)
            raw.send(connect_3(place.token, "c", will=text("state/c") + text(f"off {number}")))
            assert await raw.frame() == b"\x20\x02\x00\x00"
            raw.send(publish_3("state/c", b"on %d" % number))
        await place.until(lambda: b"on 9" in said)
        listening.cancel()
        await asyncio.wait([listening])
    expected = [b"on 0"]
    for number in range(1, 10):
        expected += [b"off %d" % (number - 1), b"on %d" % number]
    assert said == expected


@with_door()
async def test_two_doors_and_many_comers_at_once_leave_one_connection(place: Place) -> None:
    async with other_door(place) as there, AsyncExitStack() as stack:
        raws: list[Raw] = []
        for number in range(20):
            reader, writer = await stack.enter_async_context(dial(place.address if number % 2 else there))
            raws.append(Raw(reader, writer))
        for raw in raws:
            raw.send(connect_3(place.token, "c", will=text("state/c") + text("off")))
        alive = list(raws)

        async def watch(raw: Raw) -> None:
            await raw.end()
            alive.remove(raw)

        watching = [asyncio.ensure_future(watch(raw)) for raw in raws]
        async with asyncio.timeout(30):
            while len(alive) > 1:  # noqa: ASYNC110 -- many end one after the other
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert len(alive) == 1
        for one in watching:
            one.cancel()
        await asyncio.wait(watching)


@with_door(limits=ClientLimits(bytes=(8 << 19) + 100))
async def test_bytes_that_are_announced_and_do_not_come_are_in_the_budget_of_their_client_alone(place: Place) -> None:
    other = grant(place.tokens, "other", publish=(">",), subscribe=(">",))
    place.clients.reload()
    async with AsyncExitStack() as stack:
        for _ in range(12):
            raw = await stack.enter_async_context(place.client())
            raw.send(b"\x30\x80\x80\x20")  # half a MiB, and nothing of it
            raw.send(b"x")
        await place.until(lambda: place.door.statistics().connections == 8)
        await asyncio.sleep(0.1)
        assert place.door.statistics().connections == 8
        async with place.dial() as raw:
            assert (await raw.join(other)).reason_code == 0
            assert await raw.follow("a") == [0]
            raw.send(frame(0x30, text("a"), b"\x00", b"x" * 500_000))
            assert len(await raw.frame()) > 500_000


@with_door()
async def test_a_connect_costs_the_same_before_the_token_whatever_is_in_it(place: Place) -> None:
    will = b"\x00" + text("w" * 60_000) + text("p" * 60_000)
    cases = {
        "short": connect_5("wrong"),
        "will": connect_5("wrong", flags=0xC6, will=will[:1] + text("w" * 30_000) + text("p" * 30_000)),
        "identifier": connect_5("wrong", client_id="c" * 65_000),
        "password": connect_5("x" * 65_000),
        "pairs": frame(
            0x10,
            text("MQTT") + b"\x05\xc2\x00\x3c\xd0\x86\x03" + b"\x26\x00\x00\x00\x00" * 10_000,
            text("c"),
            text("u"),
            text("x"),
        ),
        "old": connect_3("x" * 60_000, "c" * 60_000),
        "name": frame(0x10, text("M" * 65_000), b"\x05"),
    }

    async def cost(packet: bytes) -> float:
        best = 1.0
        for _ in range(8):
            async with place.dial() as raw:
                await asyncio.sleep(0.01)
                began = thread_time()
                raw.send(packet)
                await rest_of(raw.reader)
                best = min(best, thread_time() - began)
        return best

    costs = {name: await cost(packet) for name, packet in cases.items()}
    assert all(one < 4 * costs["short"] + 0.002 for one in costs.values()), costs


@pytest.mark.parametrize("count", [1023, 1024, 1025])
@with_door()
async def test_filters_of_one_packet_at_the_limit(place: Place, count: int) -> None:
    async with place.client() as raw:
        raw.send(frame(0xA2, b"\x00\x01\x00", *(text(f"a/{n}") for n in range(count))))
        answer = await raw.frame()
        assert answer[0] == (0xB0 if count <= 1024 else 0xE0)


ODD_FILTERS = [
    "", "/", "//", "#/", "a/#/b", "a#", "+a", "$share//a", "$share/g", "$share/g/", "$share/+/a", "$share/g/$SYS/#",
    "a b", "a.b", "a\u00e9", "a" * 300, "/".join("a" * 40), "*", ">", "a/>", "$share/" + "g" * 200 + "/a", "$queue/a",
]  # fmt: skip


@with_door()
async def test_each_odd_filter_has_a_reason_and_costs_no_connection(place: Place, silent_log: None) -> None:
    async with place.client() as raw:
        for one in ODD_FILTERS:
            raw.send(frame(0x82, b"\x00\x01\x00", text(one), b"\x00"))
            answer = await raw.frame()
            assert answer[0] == 0x90, (one, answer)
            raw.send(frame(0xA2, b"\x00\x01\x00", text(one)))
            assert (await raw.frame())[0] == 0xB0, one
        for topic in ODD_FILTERS:
            raw.send(frame(0x32, text(topic), b"\x00\x05", b"\x00"))
            assert (await raw.frame())[0] == 0x40, topic


@with_door(limits=ClientLimits(retained_bytes=2 << 20))
async def test_who_takes_nothing_of_many_retained_values_holds_up_nobody(place: Place) -> None:
    other = grant(place.tokens, "other", publish=(">",), subscribe=(">",))
    place.clients.reload()
    async with place.client() as raw:
        for number in range(500):
            raw.send(frame(0x33, text(f"r/{number}"), b"\x00\x05", b"\x00", b"x" * 2000))
        for _ in range(500):
            assert (await raw.frame())[0] == 0x40
    async with AsyncExitStack() as stack:
        for _ in range(20):
            slow = await stack.enter_async_context(place.dial(SO_RCVBUF=4096, limit=1024))
            slow.send(connect_5(place.token, client_id=""), frame(0x82, b"\x00\x01\x00", text("r/+"), b"\x00"))
        raw = await stack.enter_async_context(place.dial())
        assert (await raw.join(other)).reason_code == 0
        loop = asyncio.get_running_loop()
        for _ in range(20):
            began = loop.time()
            raw.send(b"\xc0\x00")
            assert await raw.frame() == b"\xd0\x00"
            assert loop.time() - began < 1
            await asyncio.sleep(0.02)
    assert mqtt5 is not None
