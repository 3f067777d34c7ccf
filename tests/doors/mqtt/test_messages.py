"""The door for MQTT: what goes into messages and comes out of them, and the errors that clients get."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mqtt5
import pytest
from mqtt5 import PublishPacket, QoS

import iris.aio
from iris.doors import clients as clients_module
from iris.doors import grant, withdraw
from iris.doors.clients import ClientLimits, Clients
from iris.doors.mqtt import open_mqtt_door
from iris.doors.mqtt.others import TOPIC, key_of
from iris.testing import inspect
from tests.doors.mqtt.place import (
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
from tests.support.async_tests import run_in_realm
from tests.support.doors import NOW, Run, with_door

ONCE = QoS.AT_LEAST_ONCE


@with_door()
async def test_a_client_of_mqtt_5_is_told_what_there_is(place: Place) -> None:
    async with place.dial() as raw:
        told = await raw.join(place.token, keep_alive=0, session_expiry_interval=99)
        assert (told.reason_code, told.session_present, told.session_expiry_interval) == (0, False, 0)
        assert (told.receive_max, told.max_qos, told.topic_alias_max) == (64, 1, 0)
        assert told.max_packet_size == (1 << 20) + 65_536
        assert told.server_keep_alive == 600
        assert len(told.assigned_client_id) == 32
        raw.send(mqtt5.PingReqPacket())
        assert isinstance(await raw.hear(), mqtt5.PingRespPacket)
    async with place.dial() as raw:
        told = await raw.join(place.token, "me", keep_alive=30)
        assert (told.server_keep_alive, told.assigned_client_id) == (None, None)


@with_door()
async def test_values_headers_and_identifiers_go_along(place: Place) -> None:
    async with place.client() as raw, place.member.subscribe("a.*") as events:
        raw.send(PublishPacket("a/b", b'{"n": 1}', content_type="application/json", user_properties=[("k", "v")]))
        event = await anext(events)
        assert event.payload == {"n": 1}
        assert dict(event.headers) == {"k": "v", "iris-client": "sensor"}
        raw.send(mqtt5.SubscribePacket(3, [mqtt5.TopicFilter("b/+")], subscription_id=300))
        assert (await raw.hear()).reason_codes == [0]
        for payload in (b"x", {"n": [1]}, {"n": b"\0"}):
            await place.member.publish("b.c", payload, headers={"iris-missed": "7", "h": "1"})
        for data, kind in (
            (b"x", None),
            (b'{"n":[1]}', "application/json"),
            (b"\x81\xa1n\xc4\x01\0", "application/msgpack"),
        ):
            told = await raw.hear()
            assert (told.topic, told.payload, told.content_type) == ("b/c", data, kind)
            assert (told.qos, told.retain, told.subscription_ids) == (0, False, [300])
            assert told.user_properties == [("h", "1")]


@with_door()
async def test_a_content_type_and_a_payload_format_go_along(place: Place) -> None:
    kinds: list[dict[str, Any]] = [
        {"content_type": "text/plain", "payload_format_indicator": 1},
        {"content_type": "image/png"},
        {"content_type": "application/json"},
        {},
    ]
    async with place.client() as raw, place.member.subscribe("a") as events:
        assert await raw.follow("a", "b") == [0, 0]
        for kind in kinds:
            payload = b"1" if len(kind) == 2 else b""
            raw.send(PublishPacket("a", payload, **kind))
            told = await raw.hear()
            assert (told.payload, told.content_type) == (payload, kind.get("content_type"))
            assert told.payload_format_indicator == kind.get("payload_format_indicator", 0)
            assert told.user_properties == [("iris-client", "sensor")]
        first = await anext(events)
        assert first.headers["mqtt-content-type"] == "text/plain"
        assert first.headers["mqtt-payload-format"] == "1"
        await place.member.publish("b", b"", headers={"mqtt-payload-format": "2"})
        told = await raw.hear()
        assert (told.content_type, told.payload_format_indicator, told.user_properties) == (None, 0, [])


@with_door()
async def test_what_mqtt_cannot_name_is_not_told(place: Place) -> None:
    async with place.client() as raw:
        assert await raw.follow("#") == [0]
        await place.member.publish("$a.b", b"")
        await place.member.publish("$a", b"")
        await place.member.publish("a.b", b"1")
        assert (await raw.hear()).payload == b"1"
    assert place.door.statistics().untellable == 2


@with_door()
async def test_the_order_of_one_client_is_kept(place: Place) -> None:
    async with place.client() as raw, storing(place.member) as stored:
        wanted: list[tuple[str, bytes]] = []
        for number in range(300):
            topic, payload = f"t/{number % 3}", b"%d" % number
            qos = number // 20 % 2
            options: dict[str, Any] = {"qos": QoS(qos), "packet_id": number + 1} if qos else {}
            raw.send(PublishPacket(topic, payload, **options))
            wanted.append((topic.replace("/", "."), payload))
        acknowledged = [(await raw.hear()).packet_id for _ in range(140)]
        assert acknowledged == [number + 1 for number in range(300) if number // 20 % 2]
        await place.until(lambda: len(stored) == 300)
        assert stored == wanted


@with_door()
async def test_an_acknowledged_message_is_stored(place: Place) -> None:
    async with storing(place.member) as stored, place.old_client() as raw:
        raw.send(publish_3("a/b", b"1", qos=1, packet_id=513), publish_3("a/b", b"2", qos=1, retain=True))
        assert await raw.frame() == b"\x40\x02\x02\x01"
        assert stored[0] == ("a.b", b"1")
        assert await raw.frame() == b"\x40\x02\x00\x01"
        assert stored[1] == ("a.b", b"2")


REFUSED: list[tuple[str, bytes, dict[str, Any], int]] = [
    ("a>b", b"", {}, 0x90),
    ("secret", b"", {}, 0x87),
    ("open", b"{", {"content_type": "application/json; charset=utf-8"}, 0x99),
    ("$call/open", b"", {}, 0x83),
    ("$call/a/b/c", b"", {"response_topic": "r"}, 0x90),
    ("$reply", b"", {}, 0x90),
    ("open", b"", {"user_properties": [("a", "1"), ("a", "2")]}, 0x83),
    ("open", b"", {"user_properties": [("a", "x" * 20_000)]}, 0x97),
    ("nobody", b"", {}, 0x83),
    ("nobody", b"", {"retain": True}, 0x83),
]


@with_door(rights={"publish": ("open", "nobody"), "subscribe": (">",)})
async def test_a_message_that_is_refused_has_its_reason_and_costs_no_other(place: Place) -> None:
    async with place.client() as raw, storing(place.member, "open") as stored:
        raw.send(*(PublishPacket(topic, payload, **options) for topic, payload, options, _ in REFUSED[:-2]))
        for number, (topic, payload, options, _) in enumerate(REFUSED, 1):
            raw.send(PublishPacket(topic, payload, qos=ONCE, packet_id=number, **options))
            raw.send(PublishPacket("open", b"%d" % number, qos=ONCE, packet_id=100 + number))
        for number, (*_, reason) in enumerate(REFUSED, 1):
            told = await raw.hear()
            assert (told.packet_id, int(told.reason_code)) == (number, reason), told
            assert told.reason_str
            told = await raw.hear()
            assert (told.packet_id, told.reason_code, told.reason_str) == (100 + number, 0, None)
    assert stored == [("open", b"%d" % number) for number in range(1, len(REFUSED) + 1)]
    assert place.door.statistics().refused.total() == len(REFUSED) * 2 - 2


@pytest.mark.parametrize("qos", [0, 1])
@with_door()
async def test_a_payload_that_is_too_large_ends_the_connection_after_what_came_before(place: Place, qos: int) -> None:
    async with place.client() as raw, place.member.subscribe("open") as events:
        raw.send(PublishPacket("open", b"before"))
        options: dict[str, Any] = {"qos": QoS(qos), "packet_id": 1} if qos else {}
        raw.send(PublishPacket("open", b"x" * ((1 << 20) + 1), **options), PublishPacket("open", b"after"))
        assert int((await raw.hear()).reason_code) == 0x95
        assert await raw.end() == b""
        assert (await anext(events)).payload == b"before"
    assert dict(place.door.statistics().refused) == {413: 1}


@with_door(limits=ClientLimits(retained=2))
async def test_what_another_client_clears_or_retains_is_on_no_former_account(place: Place) -> None:
    other = grant(place.tokens, "other", publish=(">",))
    place.clients.reload()
    async with place.client() as raw, place.dial() as second, storing(place.member):
        assert (await second.join(other)).reason_code == 0

        async def retain(client: Raw, topic: str, payload: bytes) -> int:
            client.send(PublishPacket(topic, payload, retain=True, qos=ONCE, packet_id=1))
            return int((await client.hear()).reason_code)

        assert [await retain(raw, topic, b"1") for topic in "abc"] == [0, 0, 0x97]
        assert await retain(second, "a", b"") == 0
        assert [await retain(raw, topic, b"1") for topic in "cd"] == [0, 0x97]
        assert await retain(second, "b", b"2") == 0
        assert [await retain(raw, topic, b"1") for topic in "de"] == [0, 0x97]
        assert [await retain(second, topic, b"2") for topic in "ef"] == [0, 0x97]
        grant(place.tokens, "other", publish=(">",))  # a new token has what the former one had
        place.clients.reload()
        assert place.clients.named("other").statistics().retained == 2


@pytest.mark.parametrize("count", [1, 3])
@with_door(patched={"iris.doors.mqtt.publishing._CONFIRMED_WITHIN": 0.2})
async def test_what_is_not_stored_in_time_is_not_acknowledged(place: Place, count: int) -> None:
    async with place.member.subscribe_durable("a") as events:
        async with place.client() as raw:
            raw.send(*(PublishPacket("a", b"", qos=ONCE, packet_id=one + 1) for one in range(count)))
            for one in range(count):
                told = await raw.hear()
                assert (told.packet_id, int(told.reason_code)) == (one + 1, 0x83)
                assert "within 0.2 s" in told.reason_str
        async with place.old_client() as raw:
            raw.send(publish_3("a", qos=1))
            await events.confirm([await anext(events) for _ in range(count + 1)])
            assert await raw.frame() == b"\x40\x02\x00\x01"
            raw.send(*(publish_3("a", qos=1, packet_id=one + 2) for one in range(count)))
            assert await raw.end() == b""


@pytest.mark.parametrize("payload", [b'"\\ud800"', b"1" * 400, b"[" * 5000 + b"]" * 5000, b"NaN", b'{"a":' * 200])
@with_door()
async def test_json_that_no_payload_can_hold_is_refused(place: Place, payload: bytes) -> None:
    async with place.client() as raw, storing(place.member):
        for packet_id, qos in ((None, 0), (1, 1)):
            sent = PublishPacket("a", payload, qos=QoS(qos), packet_id=packet_id, content_type="application/json")
            raw.send(sent)
        told = await raw.hear()
        assert (told.packet_id, int(told.reason_code) >= 0x80) == (1, True)


@with_door()
async def test_who_wants_no_reasons_gets_none(place: Place) -> None:
    limited = place.client("small", keep_alive=60, max_packet_size=20)
    async with place.client(request_problem_info=False) as raw, limited as small:
        for one in (raw, small):
            one.send(PublishPacket("a>b", b"", qos=ONCE, packet_id=1))
            told = await one.hear()
            assert (int(told.reason_code), told.reason_str) == (0x90, None)


@pytest.mark.parametrize("topic", ["a>b", "nobody"])
@with_door()
async def test_a_client_that_knows_no_reasons_is_disconnected(place: Place, topic: str) -> None:
    async with place.old_client() as raw:
        raw.send(publish_3(topic), publish_3(topic, qos=1))
        assert await raw.end() == b""


FILTERS = [
    ("a/#", 0),
    ("b>c", 0x8F),
    ("secret", 0x87),
    ("$SYS/#", 0x8F),
    ("$share/g/a", 0),
    ("a//b", 0),
    ("b/#", 0),
    ("c/#", 0x87),
    ("$share//a", 0x8F),
    ("$share/g h/a", 0x8F),
    ("$share/+/a", 0x8F),
    ("$share/g.h/a", 0x8F),
]


@with_door(rights={"subscribe": ("a", "a.>", "b.>")})
async def test_each_filter_has_its_answer(place: Place) -> None:
    async with place.client() as raw:
        assert await raw.follow(*(one for one, _ in FILTERS)) == [reason for _, reason in FILTERS]
        assert await raw.follow("a", no_local=True) == [0x83]
        raw.send(mqtt5.UnsubscribePacket(4, ["a/#", "a"]))
        told = await raw.hear()
        assert (told.packet_id, [int(one) for one in told.reason_codes]) == (4, [0, 0x11])
        raw.send(mqtt5.SubscribePacket(4, [mqtt5.TopicFilter("$share/g/a", no_local=True)]))
        assert int((await raw.hear()).reason_code) == 0x82
    async with place.old_client() as raw:
        raw.send(subscribe_3("a/b", "$share/g/a", "b>c", "secret", qos=2))
        assert await raw.frame() == b"\x90\x06\x00\x07\x00\x80\x80\x80"
        raw.send(frame(0xA2, b"\x00\x08", text("a/b")))
        assert await raw.frame() == b"\xb0\x02\x00\x08"
        await place.member.publish("a.b", b"not any more")
        raw.send(b"\xc0\x00")
        assert await raw.frame() == b"\xd0\x00"


@with_door()
async def test_a_group_shares_its_events(place: Place) -> None:
    async with place.client() as one, place.client() as other:
        for raw in (one, other):
            assert await raw.follow("$share/g/a") == [0]
        for number in range(2):
            await place.member.publish("a", b"%d" % number)
        assert {(await raw.hear()).payload for raw in (one, other)} == {b"0", b"1"}


@with_door()
async def test_a_group_of_clients_takes_nothing_from_one_of_members(place: Place) -> None:
    async with place.client() as raw, place.member.subscribe("a", group="workers") as events:
        assert await raw.follow("$share/workers/a") == [0]
        for number in range(4):
            await place.member.publish("a", b"%d" % number)
        assert [(await raw.hear()).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        assert [(await anext(events)).payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]


@with_door()
async def test_retained_messages_come_as_the_options_say(place: Place) -> None:
    async with place.client() as raw:
        raw.send(PublishPacket("kept", b"1", retain=True))
        for handling, count in ((0, 1), (0, 1), (1, 0), (2, 0)):
            handled = mqtt5.RetainHandling(handling)
            raw.send(mqtt5.SubscribePacket(9, [mqtt5.TopicFilter("kept", retain_handling=handled)]))
            heard = [await raw.hear() for _ in range(count + 1)]
            heard.sort(key=lambda packet: isinstance(packet, PublishPacket))
            assert isinstance(heard[0], mqtt5.SubAckPacket)
            assert [(one.payload, one.retain) for one in heard[1:]] == [(b"1", True)] * count
        raw.send(PublishPacket("kept", b"2", retain=True))
        told = await raw.hear()
        assert (told.payload, told.retain) == (b"2", False)  # it is new
        raw.send(PublishPacket("kept", b"", retain=True))
        assert (await raw.hear()).payload == b""
    assert not place.node.forget_retained("kept")


@with_door()
async def test_a_lost_connection_has_a_will_and_one_that_was_ended_has_none(place: Place) -> None:
    will = mqtt5.Will("wills", payload=b'"gone"', content_type="application/json", qos=ONCE)

    async def leave(raw: Raw, reason: int | None) -> None:
        if reason is not None:
            raw.send(mqtt5.DisconnectPacket(reason_code=mqtt5.DisconnectReasonCode(reason)))
            await raw.end()

    async with place.member.subscribe("wills") as events:
        for number, (reason, has_will) in enumerate([(0, False), (None, True), (4, True)]):
            async with place.client(will=will) as raw:
                await leave(raw, reason)
            if has_will:
                assert (await anext(events)).payload == "gone"
            await place.until(lambda: not place.door.statistics().connections)
            assert place.door.statistics().published == number
    async with storing(place.member) as stored, place.dial() as raw:
        old_will = text("wills") + text(b"gone")
        raw.send(connect_3(place.token, flags=0xEA, will=old_will))  # of QoS 1, retained
        assert await raw.frame() == b"\x20\x02\x00\x00"
        raw.writer.close()
        await place.until(lambda: stored == [("wills", b"gone")])
    await place.until(lambda: place.node.forget_retained("wills"))


WRONG_WILLS = [
    (mqtt5.Will("a>b"), 0x90),
    (mqtt5.Will("secret"), 0x87),
    (mqtt5.Will("open", qos=QoS.EXACTLY_ONCE), 0x9B),
]


@with_door(rights={"publish": ("open",)})
async def test_a_will_that_could_not_be_done_is_refused_at_once(place: Place) -> None:
    for will, reason in WRONG_WILLS:
        async with place.dial() as raw:
            assert int((await raw.join(place.token, will=will)).reason_code) == reason
            assert await raw.end() == b""


@pytest.mark.parametrize("has_will", [False, True])
@with_door()
async def test_the_newer_of_two_connections_stays(place: Place, has_will: bool) -> None:
    will = mqtt5.Will("wills") if has_will else None
    async with (
        place.member.subscribe("wills") as events,
        place.client("me", will=will) as older,
        place.client("you") as other,
    ):
        async with place.client("me") as newer:
            assert int((await older.hear()).reason_code) == 0x8E
            assert await older.end() == b""
            if has_will:
                assert (await anext(events)).payload == b""
            for raw in (newer, other):
                raw.send(mqtt5.PingReqPacket())
                assert isinstance(await raw.hear(), mqtt5.PingRespPacket)
        await place.until(lambda: place.door.statistics().connections == 1)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("takeovers", [1, 4])
@with_door()
async def test_a_device_that_comes_back_ends_online(place: Place, qos: int, takeovers: int) -> None:
    """The will of the former connection comes before all that the new one publishes."""
    will = mqtt5.Will("status", payload=b"offline", retain=True, qos=QoS(qos))
    async with storing(place.member, "status") as stored, AsyncExitStack() as clients:

        async def come() -> Raw:
            raw = await clients.enter_async_context(place.client("device", will=will))
            raw.send(PublishPacket("status", b"online", retain=True, qos=ONCE, packet_id=1))
            assert isinstance(await raw.hear(), mqtt5.PubAckPacket)
            return raw

        raw, *_ = [await come() for _ in range(takeovers + 1)][::-1]
        assert [payload for _, payload in stored] == [b"online", *([b"offline", b"online"] * takeovers)]
        async with place.member.subscribe("status") as events:
            assert (await anext(events)).payload == b"online"
        raw.send(mqtt5.DisconnectPacket())
        await raw.end()


@with_door()
async def test_who_comes_back_many_times_at_once_ends_online(place: Place) -> None:
    will = mqtt5.Will("status", payload=b"offline")

    async def come(place: Place, number: int) -> int | None:
        async with place.dial() as raw:
            told = await raw.join(place.token, "device", will=will)
            if int(told.reason_code):
                return None
            raw.send(PublishPacket("status", b"%d" % number))
            told = await raw.hear()  # until it is taken over
            return number

    seen: list[bytes] = []
    async with place.member.subscribe("status") as events:
        coming = [asyncio.ensure_future(come(place, number)) for number in range(10)]
        await place.until(lambda: sum(task.done() for task in coming) == 9)
        while seen.count(b"offline") < 9 or seen[-1] == b"offline":
            seen.append((await anext(events)).payload)
        (last,) = (number for number, task in enumerate(coming) if not task.done())
        assert seen[-1] == b"%d" % last
        for task in coming:
            task.cancel()
        await asyncio.wait(coming)


def test_a_device_that_comes_back_to_another_door_ends_online(run: Run) -> None:
    will = mqtt5.Will("status", payload=b"offline")

    async def work(place: Place) -> None:
        made = socket.create_server(("127.0.0.1", 0))
        clients = Clients(place.tokens, lambda: NOW)
        async with (
            place.member.subscribe("status") as events,
            iris.aio.open_node("door") as node,
            open_mqtt_door(node, clients, sockets=[made]) as door,
        ):
            second = dataclasses.replace(place, node=node, door=door, clients=clients, address=made.getsockname())
            await place.until(lambda: TOPIC in inspect(place.node).subscribers)
            await place.until(lambda: TOPIC in inspect(node).subscribers)
            async with place.client("device", will=will) as older, place.client("other", will=will) as other:
                older.send(PublishPacket("status", b"online"))
                assert (await anext(events)).payload == b"online"
                async with second.client("device", will=will) as newer:
                    assert int((await older.hear()).reason_code) == 0x8E
                    assert await older.end() == b""
                    newer.send(PublishPacket("status", b"online"), mqtt5.PingReqPacket())
                    assert isinstance(await newer.hear(), mqtt5.PingRespPacket)
                    assert [(await anext(events)).payload for _ in range(2)] == [b"offline", b"online"]
                    other.send(mqtt5.PingReqPacket())
                    assert isinstance(await other.hear(), mqtt5.PingRespPacket)
                    newer.send(mqtt5.DisconnectPacket())
                    await newer.end()
                other.send(mqtt5.DisconnectPacket())
                await other.end()
            coming = [asyncio.ensure_future(come_and_go(at)) for at in (place, second) * 4]
            async with asyncio.timeout(5):  # no two of them wait for each other
                await asyncio.gather(*coming)

    async def come_and_go(place: Place) -> None:
        async with place.dial() as raw:
            await raw.join(place.token, "both")

    run(work)


@with_door()
async def test_what_a_client_says_on_the_topic_of_doors_ends_nothing(place: Place) -> None:
    async with place.client("device") as device, place.client() as other:
        said = json.dumps({"came": key_of("sensor", "device"), "number": 1}).encode()
        topic = TOPIC.replace(".", "/")
        other.send(PublishPacket(topic, said, content_type="application/json"), mqtt5.PingReqPacket())
        assert isinstance(await other.hear(), mqtt5.PingRespPacket)
        async with place.client() as third:
            third.send(mqtt5.PingReqPacket())
            await third.hear()
        device.send(mqtt5.PingReqPacket())
        assert isinstance(await device.hear(), mqtt5.PingRespPacket)


@pytest.mark.parametrize("may_still", [True, False])
def test_a_will_is_published_by_the_rights_of_the_token_that_has_replaced_the_former(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, may_still: bool
) -> None:
    monkeypatch.setattr(clients_module, "_REREAD", 0.01)

    async def work(place: Place) -> None:
        following = asyncio.ensure_future(place.clients.follow())
        try:
            async with place.member.subscribe(">") as events, place.client(will=mqtt5.Will("wills")) as raw:
                grant(place.tokens, "sensor", publish=("wills" if may_still else "others",))
                assert int((await raw.hear()).reason_code) == 0x87
                assert await raw.end() == b""
                await place.until(lambda: not place.door.statistics().connections)
                counted = place.door.statistics()
                assert (counted.published, dict(counted.refused)) == ((1, {}) if may_still else (0, {403: 1}))
                if may_still:
                    assert (await anext(events)).topic == "wills"
        finally:
            following.cancel()

    run(work)
    assert ("its will was not published" in caplog.text) is not may_still


@with_door(patched={"iris.doors.clients._REREAD": 0.01})
async def test_a_token_that_is_withdrawn_ends_the_connection(place: Place) -> None:
    following = asyncio.ensure_future(place.clients.follow())
    try:
        async with place.client(will=mqtt5.Will("wills")) as raw:
            assert await raw.follow("a") == [0]
            withdraw(place.tokens, "sensor")
            assert int((await raw.hear()).reason_code) == 0x87
            assert await raw.end() == b""
    finally:
        following.cancel()
    assert place.door.statistics().published == 0  # no will of who may do nothing


def test_a_door_that_closes_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        before = asyncio.all_tasks()
        async with AsyncExitStack() as clients, iris.aio.open_node("other") as other, other.subscribe("wills") as wills:
            async with open_place(tmp_path) as place:
                stranger = await clients.enter_async_context(place.dial())
                raw = await clients.enter_async_context(place.client(will=mqtt5.Will("wills")))
                assert await raw.follow("a/#") == [0]
                old = await clients.enter_async_context(place.old_client())
            assert int((await raw.hear()).reason_code) == 0x8B
            assert [await one.end() for one in (stranger, raw, old)] == [b"", b"", b""]
            await anext(wills)
        assert asyncio.all_tasks() == before

    with caplog.at_level(logging.WARNING, "iris"):
        run_in_realm(tmp_path, monkeypatch, work)
    assert not caplog.records
