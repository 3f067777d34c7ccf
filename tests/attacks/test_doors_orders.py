"""The doors once more: combinations of what was mended, and orders of events."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- doors run on asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest
import websockets.asyncio.client as websockets
from websockets.exceptions import ConnectionClosed, InvalidStatus

from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from iris.doors.mqtt import open_mqtt_door
from iris.doors.tokens import grant, withdraw
from tests.doors.mqtt import place as mqtt
from tests.doors.mqtt.place import Raw, connect_3, frame, publish_3, subscribe_3, text
from tests.support.doors import Place, Run, dial, next_event, rest_of, with_door

pytestmark = pytest.mark.long


@with_door()
async def test_a_tunnel_in_a_page_elsewhere_or_without_a_token_is_none(place: Place, silent_log: None) -> None:
    url = f"ws{place.url[4:]}/tunnel/greeters"
    for headers in ({}, {"cookie": f"token={place.token}"}, {"origin": "https://evil.example"}):
        with pytest.raises(InvalidStatus) as refused:
            async with websockets.connect(url, additional_headers=headers):
                pass
        assert refused.value.response.status_code == 401
    for protocols in (["iris.token."], ["iris.token.x", f"iris.token.{place.token}"], ["a" * 200]):
        with pytest.raises(InvalidStatus):
            async with websockets.connect(url, subprotocols=protocols):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("how", ["withdrawn", "replaced"])
@with_door()
async def test_a_tunnel_whose_token_goes_while_a_message_is_half_sent_ends(
    place: Place, how: str, silent_log: None
) -> None:
    headers = {"authorization": f"Bearer {place.token}"}
    async with websockets.connect(f"ws{place.url[4:]}/tunnel/greeters", additional_headers=headers) as tunnel:
        await tunnel.recv()
        assert tunnel.transport is not None
        tunnel.transport.write(b"\x02\xff\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"x" * 1000)
        await asyncio.sleep(0.1)
        if how == "withdrawn":
            withdraw(place.tokens, "web")
        else:
            grant(place.tokens, "web", call=("nobody",))
        place.clients.reload()
        with pytest.raises(ConnectionClosed) as ended:
            await tunnel.recv()
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 4401
    while place.counted.tunnels != ["broken"]:  # noqa: ASYNC110 -- the member says it
        await asyncio.sleep(0.01)


@with_door(rights={"call": (">",)})
async def test_rights_that_become_more_are_there_at_once_for_who_comes_again(place: Place) -> None:
    assert (await place.post("/publish/a", b"x")).status == 403
    token = grant(place.tokens, "web", call=(">",), publish=("a",))
    place.clients.reload()
    assert (await place.post("/publish/a", b"x")).status == 401
    assert (await place.post("/publish/a", b"x", {"authorization": f"Bearer {token}"})).status == 204


@with_door()
async def test_a_head_in_single_bytes_is_read_while_others_flood(place: Place) -> None:
    """A slow client with a token gets through, though clients without one use all that these may have."""

    async def flood() -> None:
        while True:
            async with place.dial() as (reader, writer):
                writer.write(b"OPTIONS /iris.js HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
                writer.write_eof()
                await rest_of(reader)

    tasks = [asyncio.ensure_future(flood()) for _ in range(10)]
    try:
        async with place.dial() as (reader, writer), asyncio.timeout(20):
            request = place.head("POST", "/request/greeters", "content-length: 1", "connection: close") + b"x"
            for at in range(0, len(request), 8):
                writer.write(request[at : at + 8])
                await asyncio.sleep(0.005)
            assert (await rest_of(reader)).startswith(b"HTTP/1.1 200")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@with_door()
async def test_a_follower_behind_a_client_that_is_ahead_loses_nothing_that_fits(place: Place) -> None:
    async with place.follow("topic=a") as followed:
        place.clients.named("web").processor.spend(0.5)
        for number in range(500):
            await place.member.publish("a", number)
        got = [(await next_event(followed))[1] for _ in range(500)]
        assert [one["payload"] for one in got] == list(range(500))
        assert sum(one["missed"] for one in got) == 0


@with_door("run_mqtt")
async def test_an_identifier_at_its_lengths_is_one_of_each_client(place: mqtt.Place) -> None:
    other = grant(place.tokens, "other", publish=(">",), subscribe=(">",))
    place.clients.reload()
    for name in ("a" * 23, "a" * 65_535, "\u00e9" * 100, "a/b+#", " "):
        async with place.old_client(name) as first, place.dial() as second:
            second.send(connect_3(other, name))
            assert await second.frame() == b"\x20\x02\x00\x00"
            first.send(b"\xc0\x00")
            assert await first.frame() == b"\xd0\x00"  # the other client's is another one


@with_door("run_mqtt", limits=ClientLimits(retained_bytes=100))
async def test_a_will_that_the_account_has_no_room_for_is_told_in_the_log_and_costs_nothing(place: mqtt.Place) -> None:
    async with place.old_client() as raw, place.dial() as dying:
        raw.send(publish_3("a", b"x" * 90, retain=True), b"\xc0\x00")
        assert await raw.frame() == b"\xd0\x00"
        dying.send(connect_3(place.token, "d", will=text("b") + text("y" * 20), flags=0xE2))
        assert await dying.frame() == b"\x20\x02\x00\x00"
        dying.writer.transport.abort()
        await place.until(lambda: place.door.statistics().refused[429] == 1)
        raw.send(subscribe_3("#"))
        # Either may come first: MQTT permits it.
        assert {await raw.frame(), await raw.frame()} == {
            b"\x90\x03\x00\x07\x00",
            publish_3("a", b"x" * 90, retain=True),
        }


@with_door("run_mqtt", max_connections=16)
async def test_the_place_of_a_client_that_was_refused_is_free_again(place: mqtt.Place) -> None:
    for _ in range(3):
        async with AsyncExitStack() as stack:
            raws = [await stack.enter_async_context(place.dial()) for _ in range(8)]
            for number, raw in enumerate(raws):
                raw.send(connect_3(place.token, f"c{number}", will=text("$bad") + text("x") if number % 2 else b""))
            answers = [(await raw.frame())[3] for raw in raws]
            assert answers.count(0) == 4
        await place.until(lambda: place.door.statistics().connections == 0)
        assert not place.door._admitted
        assert not place.door._coming_of


@with_door()
async def test_two_doors_of_one_node_share_the_time_and_the_rights_of_a_client(place: Place) -> None:
    made = socket.create_server(("127.0.0.1", 0))
    async with (
        open_mqtt_door(place.node, place.clients, sockets=[made]),
        dial(made.getsockname()) as (reader, writer),
        place.follow("topic=a.>") as followed,
    ):
        raw = Raw(reader, writer)
        assert (await raw.join(place.token)).reason_code == 0
        raw.send(frame(0x30, text("a/b"), b"\x03\x03\x00\x00"), frame(0x30, text("a/c"), b"\x00", b"\xff"))
        said = (await next_event(followed))[1], (await next_event(followed))[1]
        assert [one["topic"] for one in said] == ["a.b", "a.c"]
        assert said[1]["encoding"] == "base64"
        assert said[0]["headers"] == {"iris-client": "web", "mqtt-content-type": ""}
        withdraw(place.tokens, "web")
        place.clients.reload()
        assert b'"code":"ended"' in (await rest_of(followed)).replace(b" ", b"")
        assert b"\xe0" in (await raw.end())[:1]


@pytest.mark.parametrize("kind", ["http", "mqtt"])
def test_a_door_with_one_place_serves_one_after_the_other(run: Run, run_mqtt: Run, kind: str) -> None:
    async def by_http(place: Any) -> None:
        for _ in range(5):
            assert (await place.post("/request/greeters", b"x")).status == 200

    async def by_mqtt(place: Any) -> None:
        for _ in range(5):
            async with place.old_client("c") as raw:
                raw.send(b"\xe0\x00")
                await raw.end()
            await place.until(lambda: place.door.statistics().connections == 0)

    if kind == "http":
        run(by_http, door_limits=HttpLimits(connections=1))
    else:
        run_mqtt(by_mqtt, max_connections=1)
