"""Requests and responses of MQTT 5: a client asks clusters, serves them, and finds the replies of other clients."""

from __future__ import annotations

import asyncio
from typing import Any

import mqtt5
import pytest

import iris
from iris.doors.clients import ClientLimits
from tests.doors.mqtt.place import Place, Raw
from tests.support.doors import Counted, greeters, with_door

RIGHTS: Any = {
    "call": ("greeters", "orders"), "serve": ("orders",), "publish": ("open.>",), "subscribe": ("open.>",),
}  # fmt: skip


def request(topic: str, payload: bytes = b"", **options: Any) -> mqtt5.PublishPacket:
    addressed: dict[str, Any] = {"response_topic": "mine/1", "correlation_data": b"\x00\xff"}
    return mqtt5.PublishPacket(topic, payload, **addressed | options)


def error_of(packet: Any) -> str | None:
    return dict(packet.user_properties).get("iris-error")


async def next_request(raw: Raw) -> tuple[str, Any]:
    packet = await raw.hear()
    assert packet.topic == "$serve/orders"
    return packet.response_topic, packet


@with_door(rights=RIGHTS)
async def test_a_client_asks_a_cluster_and_gets_the_reply_at_its_response_topic(place: Place) -> None:
    async with place.member.join("greeters", greeters(Counted())), place.client() as raw:
        await place.node.wait_for("greeters")
        raw.send(request("$call/greeters", b'{"tea": 1}', content_type="application/json"))
        reply = await raw.hear()
        assert (reply.topic, reply.payload, reply.content_type, reply.correlation_data) == (
            "mine/1", b'{"tea":1}', "application/json", b"\x00\xff",
        )  # fmt: skip
        assert error_of(reply) is None
        raw.send(request("$call/greeters/headers", user_properties=[("trace", "ü")], correlation_data=None))
        reply = await raw.hear()
        assert (reply.payload, reply.correlation_data) == (b'{"trace":"\xc3\xbc","iris-client":"sensor"}', None)
        raw.send(request("$call/greeters/square", b"x"))
        assert error_of(await raw.hear()) == "bad_request"
        raw.send(request("$call/greeters/never", message_expiry_interval=1))
        assert error_of(await raw.hear()) == "timeout"
        counted = place.door.statistics()
        assert (counted.called, dict(counted.refused)) == (4, {400: 1, 504: 1})
        assert place.clients.named("sensor").statistics().bytes == 0


@with_door(rights=RIGHTS)
async def test_what_a_client_may_not_ask_is_refused_by_the_acknowledgement(place: Place) -> None:
    async with place.client() as raw:
        raw.send(request("$call/tills", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=7))
        assert (await raw.hear()).reason_code == 0x87
        raw.send(request("$call/orders", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=8))
        heard = [await raw.hear() for _ in range(2)]
        (puback,) = (one for one in heard if isinstance(one, mqtt5.PubAckPacket))
        (reply,) = (one for one in heard if isinstance(one, mqtt5.PublishPacket))
        assert (puback.packet_id, puback.reason_code, error_of(reply)) == (8, 0, "no_such_cluster")


@with_door(rights=RIGHTS, limits=ClientLimits(calls=2))
async def test_a_client_has_no_more_requests_at_a_time_than_others(place: Place) -> None:
    counted = Counted()
    async with place.member.join("greeters", greeters(counted)), place.client() as raw:
        await place.node.wait_for("greeters")
        for number in range(3):
            raw.send(request("$call/greeters/never", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=number + 1))
        assert [(await raw.hear()).reason_code for _ in range(3)] == [0, 0, 0x97]
        await counted.working.wait()
    await place.until(lambda: counted.stopped == 2)  # its requests end with it


@with_door(rights=RIGHTS)
async def test_a_client_serves_a_cluster(place: Place) -> None:
    async with place.client() as raw:
        assert await raw.follow("$serve/orders") == [0]
        asking = asyncio.ensure_future(
            place.member.request("orders", {"tea": 1}, operation="brew", headers={"trace": "t"}, wait=30)
        )
        topic, packet = await next_request(raw)
        assert (packet.payload, packet.content_type, packet.message_expiry_interval) == (
            b'{"tea":1}', "application/json", 5,
        )  # fmt: skip
        assert dict(packet.user_properties) == {"trace": "t", "iris-sender": "member", "iris-operation": "brew"}
        assert packet.correlation_data is not None
        raw.send(mqtt5.PublishPacket(topic, b"[2]", content_type="application/json"))
        assert await asking == [2]
        raw.send(mqtt5.PublishPacket(topic, b"twice"))
        for payload, user, code in (
            (b"none left", "out-of-tea", "out-of-tea"), (b"x", "no name", "malformed"), (b"{", None, "bad_payload")
        ):  # fmt: skip
            asking = asyncio.ensure_future(place.member.request("orders", b""))
            topic, packet = await next_request(raw)
            if user is None:
                reply = mqtt5.PublishPacket(topic, payload, content_type="application/json")
            else:
                reply = mqtt5.PublishPacket(topic, payload, user_properties=[("iris-error", user)])
            raw.send(reply)
            with pytest.raises(iris.RemoteError) as caught:
                await asking
            assert caught.value.code == code
        await place.member.broadcast("orders", "all")
        told = await raw.hear()
        assert (told.topic, told.payload, told.response_topic) == ("$serve/orders", b'"all"', None)
        with pytest.raises(iris.TunnelBroken):
            async with place.member.open_tunnel("orders") as tunnel:
                await tunnel.receive()
        assert place.door.statistics().served == 1
        await place.until(lambda: place.clients.named("sensor").statistics().bytes == 0)


@with_door(rights=RIGHTS)
async def test_two_connections_share_the_requests_by_what_they_take_and_lost_ones_go_on(place: Place) -> None:
    again = iris.RequestOptions(idempotent=True)
    async with place.client("second") as second:
        async with place.client("first") as first:
            for raw in (first, second):
                wanted = [mqtt5.TopicFilter("$serve/orders")]
                raw.send(mqtt5.SubscribePacket(9, wanted, user_properties=[("capacity", "1")]))
                assert list((await raw.hear()).reason_codes) == [0]
            asking = [
                asyncio.ensure_future(place.member.request("orders", None, options=again, timeout=30, wait=30))
                for _ in range(2)
            ]
            await next_request(first)
            topic, _ = await next_request(second)
        second.send(mqtt5.PublishPacket(topic, b"mine"))
        topic, _ = await next_request(second)
        second.send(mqtt5.PublishPacket(topic, b"mine"))
        assert await asyncio.gather(*asking) == [b"mine", b"mine"]
        failing = asyncio.ensure_future(place.member.request("orders", None))
        await next_request(second)
    with pytest.raises(iris.Unknown):
        await failing


@with_door(rights=RIGHTS)
async def test_who_unsubscribes_finishes_what_it_has(place: Place) -> None:
    async with place.client() as raw:
        assert await raw.follow("$serve/orders") == [0]
        asking = asyncio.ensure_future(place.member.request("orders", None, wait=30))
        topic, _ = await next_request(raw)
        raw.send(mqtt5.UnsubscribePacket(8, ["$serve/orders"]))
        assert list((await raw.hear()).reason_codes) == [0]
        raw.send(mqtt5.PublishPacket(topic, b"done"))
        assert await asking == b"done"
        with pytest.raises(iris.DeliveryError):
            await place.member.request("orders", None)
        raw.send(mqtt5.UnsubscribePacket(8, ["$serve/orders"]))
        assert list((await raw.hear()).reason_codes) == [0x11]


@pytest.mark.parametrize(
    ("text", "user", "reason"),
    [
        ("$serve/tills", [], 0x87),
        ("$serve/a/b", [], 0x8F),
        ("$serve/orders", [("capacity", "0")], 0x83),
        ("$serve/orders", [("capacity", "1025")], 0x83),
    ],
)
@with_door(rights=RIGHTS)
async def test_what_a_client_may_not_serve(place: Place, text: str, user: list[tuple[str, str]], reason: int) -> None:
    async with place.client() as raw:
        raw.send(mqtt5.SubscribePacket(9, [mqtt5.TopicFilter(text)], user_properties=user))
        assert list((await raw.hear()).reason_codes) == [reason]


@with_door(rights=RIGHTS, limits=ClientLimits(bytes=16 << 20))
async def test_a_program_that_does_not_read_costs_its_client_bytes_and_no_others_anything(place: Place) -> None:
    async with place.client() as raw:
        assert await raw.follow("$serve/orders") == [0]
        transport: Any = raw.writer.transport
        transport.pause_reading()
        refused = 0
        for _ in range(40):
            try:
                await place.member.request("orders", bytes(1 << 20), timeout=0.2, wait=30)
            except iris.Overloaded:
                refused += 1
            except iris.RequestTimeout:
                pass
            assert place.clients.named("sensor").statistics().bytes <= 16 << 20
        assert refused


@with_door(rights=RIGHTS)
async def test_clients_ask_each_other_by_topics(place: Place) -> None:
    """Response topic and correlation data go with an event, as headers that members see."""
    async with place.client("a") as a, place.client("b") as b, place.old_client("c") as c:
        assert await b.follow("open/ask") == [0]
        assert await a.follow("open/reply/+") == [0]
        async with place.member.subscribe("open.ask") as events:
            a.send(request("open/ask", b"?", response_topic="open/reply/a"))
            asked = await b.hear()
            assert (asked.response_topic, asked.correlation_data) == ("open/reply/a", b"\x00\xff")
            assert dict(asked.user_properties) == {"iris-client": "sensor"}
            b.send(mqtt5.PublishPacket(asked.response_topic, b"!", correlation_data=asked.correlation_data))
            reply = await a.hear()
            assert (reply.topic, reply.payload, reply.correlation_data) == ("open/reply/a", b"!", b"\x00\xff")
            event = await anext(aiter(events))
            assert event.headers["mqtt-response-topic"] == "open/reply/a"
            assert event.headers["mqtt-correlation-data"] == "AP8="
        await place.member.publish("open.ask", b"", headers={"mqtt-correlation-data": "?", "mqtt-response-topic": "#"})
        asked = await b.hear()
        assert (asked.response_topic, asked.correlation_data) == (None, None)
        del c


@with_door(rights=RIGHTS)
async def test_what_a_client_says_of_a_payload_reaches_who_serves(place: Place) -> None:
    async with place.client() as program, place.client() as raw:
        assert await program.follow("$serve/orders") == [0]
        await place.node.wait_for("orders")
        raw.send(request("$call/orders", b"<p>", content_type="text/html", payload_format_indicator=1))
        topic, asked = await next_request(program)
        assert (asked.payload, asked.content_type, asked.payload_format_indicator) == (b"<p>", "text/html", 1)
        assert not [name for name, _ in asked.user_properties if name.startswith("mqtt-")]
        program.send(mqtt5.PublishPacket(topic, b"seen"))
        assert (await raw.hear()).payload == b"seen"
        await place.member.broadcast("orders", b"<p>", headers={"mqtt-content-type": "text/html"})
        assert (await program.hear()).content_type == "text/html"
