"""The door for MQTT: what clients can do to it that mean no good, or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import resource
import time
from contextlib import AsyncExitStack
from typing import Any

import mqtt5
import pytest

from iris.doors import grant
from iris.doors.clients import ClientLimits
from iris.doors.mqtt import door, reading
from iris.doors.mqtt.packets import Reason
from iris.patterns.pubsub.subscribe import SubscriptionLimits
from tests.doors.mqtt.place import Place, Raw, connect_3, frame, publish_3, storing, subscribe_3, text
from tests.support.doors import Run, rest_of, with_door


async def is_well(place: Place) -> None:
    """Check that the door serves another client."""
    async with place.client() as raw, place.member.subscribe("well") as events:
        raw.send(mqtt5.PublishPacket("well", b"1"))
        assert (await anext(events)).payload == b"1"


NO_CONNECTS = [
    b"GET / HTTP/1.1\r\nhost: door\r\nuser-agent: a browser that has lost its way, and goes on and on and on\r\n\r\n",
    b"\x00\x00",
    b"\xc0\x00",
    b"\x16\x03\x01\x00\x00",
    b"\x10\xff\xff\xff\xff\xff",
    b"\x10\xff\xff\xff\x7f",
    b"\x30\xff\xff\xff\x7f",
    publish_3("a"),
    frame(0x10, text("MQTX"), b"\x05"),
]


@pytest.mark.parametrize("sent", NO_CONNECTS)
@with_door()
async def test_what_is_no_connect_costs_its_connection(place: Place, sent: bytes) -> None:
    async with place.dial() as raw:
        raw.send(sent)
        assert await raw.end() == b""
    assert place.door.statistics().turned_away == 1
    await is_well(place)


@with_door(patched={"iris.doors.mqtt.door._CONNECT_WITHIN": 0.2})
async def test_who_does_not_say_who_it_is_in_time_is_turned_away(place: Place) -> None:
    """``until`` asserts that they are counted, ``is_well`` that others are served meanwhile."""
    async with AsyncExitStack() as stack:
        for number in range(12):
            raw = await stack.enter_async_context(place.dial())
            raw.send(connect_3(place.token)[: number % 9])
        await is_well(place)
    await place.until(lambda: place.door.statistics().turned_away == 12)


@with_door(patched={"iris.doors.accepting.UNAUTHENTICATED": 4})
async def test_strangers_who_say_nothing_make_room_for_those_who_do(place: Place) -> None:
    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(place.dial()) for _ in range(12)]
        async with asyncio.timeout(5):  # half of what those have to say who they are
            await is_well(place)
            for raw in silent[:8]:
                assert await raw.end() == b""


@with_door(patched={"iris.doors.accepting.UNAUTHENTICATED": 8})
async def test_a_crowd_that_comes_at_once_gets_in(place: Place) -> None:
    """Those that are nearest to their end are not cut off for those that have just come."""
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(place.dial()) for _ in range(60)]
        for raw in crowd:
            raw.send(connect_3(place.token))
        assert [await raw.frame() for raw in crowd] == [b"\x20\x02\x00\x00"] * 60


def test_what_a_stranger_sends_is_not_looked_at_but_for_the_token(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``decode_connect`` takes as long as a CONNECT is large, ``password_of`` does not."""
    decoded: list[int] = []

    def decode(body: bytes) -> Any:
        decoded.append(len(body))
        return reading.decode_connect(body)

    monkeypatch.setattr(door, "decode_connect", decode)
    pairs = [("abcdef", "abcdef")] * 4000

    async def work(place: Place) -> None:
        for secret in ("wrong", "w" * 60_000):
            async with place.dial() as raw:
                assert (await raw.join(secret, user_properties=pairs)).reason_code == Reason.BAD_PASSWORD
        assert decoded == []
        async with place.dial() as raw:
            assert (await raw.join(place.token, user_properties=pairs)).reason_code == Reason.TOO_LARGE
        await is_well(place)

    run(work)


@pytest.mark.parametrize("kind", ["filters", "unsubscribing", "topics", "pairs"])
@with_door()
async def test_what_one_client_sends_holds_up_no_other(place: Place, kind: str) -> None:
    """Each took seconds: as long as all that one connection had sent took to be refused."""
    one = text("a>b") + b"\x00"
    floods = {
        "filters": frame(0x82, b"\x00\x07\x00", one * 1000),
        "unsubscribing": frame(0xA2, b"\x00\x07\x00", text("a>b") * 1000),
        "topics": frame(0x30, text("a>b"), b"\x00") * 1000,
        "pairs": frame(0x30, text("a"), b"\xae\x1c", (b"\x26" + text("a") + text("b")) * 514) * 10,
    }  # fmt: skip

    async def flood(raw: Raw) -> None:
        reading = asyncio.ensure_future(rest_of(raw.reader))
        try:
            while not reading.done():
                raw.send(floods[kind])
                await raw.writer.drain()
        except ConnectionError:
            pass
        finally:
            reading.cancel()
            raw.writer.transport.abort()  # what is on its way does not have to arrive

    other = grant(place.tokens, "other", publish=("well",))
    place.clients.reload()
    async with AsyncExitStack() as stack:
        flooding = [asyncio.ensure_future(flood(await stack.enter_async_context(place.client()))) for _ in range(2)]
        raw = await stack.enter_async_context(place.dial())
        assert (await raw.join(other)).reason_code == 0
        took: list[float] = []
        for _ in range(2):
            began = time.thread_time()  # the door's thread is this one, whatever else the machine does
            raw.send(b"\xc0\x00")
            assert await raw.frame() == b"\xd0\x00"
            took.append(time.thread_time() - began)
        assert min(took) < 0.3
        for task in flooding:
            task.cancel()
        await asyncio.wait(flooding)


@with_door()
async def test_other_levels_and_wrong_tokens_have_their_answers(place: Place) -> None:
    answers = [
        (frame(0x10, text("MQIsdp"), b"\x03\x02\x00\x00", text("")), b"\x20\x02\x00\x01"),
        (frame(0x10, text("MQTT"), b"\x06\x02\x00\x00\x00", text("")), b"\x84"),
        (frame(0x10, text("MQTT"), b"\x84\x02\x00\x00", text("")), b"\x20\x02\x00\x01"),
        (frame(0x10, text("MQIsdp"), b"\x83\x02\x00\x00", text("")), b"\x20\x02\x00\x01"),
        (connect_3("wrong"), b"\x20\x02\x00\x05"),
        (frame(0x10, text("MQTT"), b"\x04\x02\x00\x00", text("")), b"\x20\x02\x00\x05"),
    ]
    old = connect_3(place.token, flags=0xC0)  # a session that is kept, of nobody
    for sent, answer in [*answers, (old, b"\x20\x02\x00\x02")]:
        async with place.dial() as raw:
            raw.send(sent)
            told = await raw.end()
            assert answer in told[:4]
    for token, options, reason in [
        ("wrong", {}, 0x86),
        ("\ufffd", {}, 0x86),
        (place.token, {"authentication_method": "x"}, 0x8C),
    ]:
        async with place.dial() as raw:
            given: dict[str, Any] = options
            assert int((await raw.join(token, **given)).reason_code) == reason
            assert await raw.end() == b""


MALFORMED = [
    (b"\x82\x02\x00\x01", 0x81),
    (b"\x30\xff\xff\xff\xff\xff", 0x81),
    (b"\x30\xff\xff\xff\x7f", 0x95),
    (b"\x82\xff\xff\x7f", 0x95),
    (frame(0x30, text(b"\xff"), b"\x00"), 0x81),
    (frame(0x30, text("a"), b"\x03\x23\x00\x01"), 0x94),
    (frame(0x34, text("a"), b"\x00\x01\x00"), 0x9B),
    (frame(0x62, b"\x00\x01"), 0x82),
    (b"\xf0\x00", 0x82),
    (mqtt5.ConnectPacket("again").write(), 0x82),
]


@pytest.mark.parametrize(("sent", "reason"), MALFORMED)
@with_door()
async def test_what_is_malformed_costs_its_connection(place: Place, sent: bytes, reason: int) -> None:
    async with place.client() as raw, place.member.subscribe("a") as events:
        raw.send(mqtt5.PublishPacket("a", b"before"), sent, mqtt5.PublishPacket("a", b"after"))
        assert int((await raw.hear()).reason_code) == reason
        assert await raw.end() == b""
        assert (await anext(events)).payload == b"before"
    await is_well(place)


@with_door()
async def test_an_older_client_is_disconnected_without_a_word(place: Place) -> None:
    for sent in (publish_3("a", qos=2), connect_3(place.token), b"\xe0\x01\x00", b"\xf0\x00"):
        async with place.old_client() as raw:
            raw.send(sent)
            assert await raw.end() == b""


@with_door()
async def test_a_client_that_is_silent_is_disconnected(place: Place) -> None:
    async with place.client(keep_alive=1, will=mqtt5.Will("wills")) as raw, place.old_client(keep_alive=1) as old:
        async with place.member.subscribe("wills") as events:
            assert int((await raw.hear()).reason_code) == 0x8D
            await anext(events)
        assert await old.end() == b""


@with_door(max_connections=2)
async def test_connections_are_bounded_and_there_is_room_for_one_that_comes_back(place: Place) -> None:
    async with place.client("one"), place.old_client("two"):
        async with place.dial() as raw:
            told = await raw.join(place.token)
            assert (int(told.reason_code), told.reason_str) == (0x89, "2 connections at a time are the limit")
        async with place.dial() as raw:
            raw.send(connect_3(place.token))
            assert await raw.end() == b"\x20\x02\x00\x03"
        async with place.client("one"):
            pass
    await place.until(lambda: place.door.statistics().connections == 0)
    await is_well(place)


@with_door(max_connections=2)
async def test_a_client_does_not_pass_the_bound_by_its_own_identifier(place: Place) -> None:
    async def leave(raw: Raw) -> None:
        await raw.end()
        raw.writer.close()  # the door waits for it, up to a second

    async with place.client("one"), place.old_client("two"), AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(place.dial()) for _ in range(40)]
        for raw in opened:
            raw.send(connect_3(place.token, "one"))
        most, left = 0, {asyncio.ensure_future(leave(raw)) for raw in opened}
        while len(left) > 1:  # one of them stays
            _, left = await asyncio.wait(left, timeout=0.001)
            most = max(most, place.door.statistics().connections)
        for last in left:
            last.cancel()
        assert most == 2
    await place.until(lambda: place.door.statistics().connections == 0)
    await is_well(place)


@with_door(limits=ClientLimits(shapes=2))
async def test_wildcards_and_groups_of_a_client_are_bounded(place: Place) -> None:
    async with place.client() as raw:
        assert await raw.follow("+/a", "a/+", "b/+", "#") == [0, 0, 0, 0x97]
        assert await raw.follow(*(f"$share/g{number}/t" for number in range(5))) == [0, 0, 0, 0, 0x97]


@with_door(limits=ClientLimits(streams=1))
async def test_what_one_token_may_have_open_is_bounded(place: Place) -> None:
    async with place.client(), place.dial() as raw:
        assert int((await raw.join(place.token)).reason_code) == 0x97
    await place.until(lambda: place.door.statistics().connections == 0)


@with_door()
async def test_a_filter_that_a_client_has_counts_once_when_it_asks_for_it_again(place: Place) -> None:
    filters = [f"t{number}" for number in range(62)]
    async with place.client("me") as raw:
        for _ in range(2):
            assert set(await raw.follow(*filters, "plants/#")) == {0}  # which is two of them
            assert await raw.follow("more") == [0x97]
        async with place.client("me") as newer:
            assert set(await newer.follow(*filters, "plants/#")) == {0}


@with_door(limits=ClientLimits(subscriptions=3))
async def test_subscriptions_of_all_connections_of_a_client_are_bounded(place: Place) -> None:
    async with place.client() as raw, place.client() as other:
        assert await raw.follow("a", "b") == [0, 0]
        assert await other.follow("c/#", "c", "d", "c") == [0x97, 0, 0x97, 0]  # c/# is two, and c counts once
        raw.send(mqtt5.UnsubscribePacket(3, ["b"]))
        await raw.hear()
        assert await other.follow("d") == [0]
        await place.member.publish("c", b"still followed")
        assert (await other.hear()).payload == b"still followed"
    await place.until(lambda: not place.door.statistics().connections)
    async with place.client() as raw:
        assert await raw.follow("a/#", "b") == [0, 0]


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_a_thousand_idle_clients_disturb_nobody(run: Run, count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this machine lets a process have {hard} files: both ends of 1,000 connections need 2,200")

    async def work(place: Place) -> None:
        async with AsyncExitStack() as stack:
            idle: list[Raw] = []
            for name in "abcd":  # a client has a quarter of the connections
                token = grant(place.tokens, name, publish=(">",), subscribe=(">",))
                place.clients.reload()
                for _ in range(count // 4):
                    idle.append(await stack.enter_async_context(place.dial()))
                    idle[-1].send(connect_3(token))
                    assert await idle[-1].frame() == b"\x20\x02\x00\x00"
            for raw in idle[:10]:
                raw.send(subscribe_3("a/#"))
                assert await raw.frame() == b"\x90\x03\x00\x07\x00"
            await place.member.publish("a.b", b"x")
            for raw in idle[:10]:
                assert (await raw.frame())[-1:] == b"x"
            await is_well(place)
            for raw in idle:
                raw.send(b"\xe0\x00")
            await place.until(lambda: not place.door.statistics().connections)

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    try:
        run(work, max_connections=count + 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@with_door(limits=ClientLimits(waiting=SubscriptionLimits(events=64, bytes=1 << 20)))
async def test_a_client_that_does_not_read_is_told_what_it_has_missed(place: Place) -> None:
    total = 12_000
    async with place.dial(SO_RCVBUF=4096, limit=16_384) as raw:
        await raw.join(place.token)
        assert await raw.follow("a") == [0]
        for number in range(total):
            await place.member.publish("a", b"%d %1000d" % (number, 0))
        seen, missed, last = 0, 0, -1
        while last < total - 1:
            told = await raw.hear()
            number = int(told.payload.split()[0])
            lost = int(dict(told.user_properties).get("iris-missed", 0))
            assert number == last + 1 + lost
            last, seen, missed = number, seen + 1, missed + lost
        assert missed > 0
        assert seen + missed == total
        counted = place.door.statistics()
        assert (counted.delivered, counted.missed) == (seen, missed)


@with_door(limits=ClientLimits(waiting=SubscriptionLimits(events=64, bytes=1 << 20)))
async def test_what_is_lost_on_many_topics_is_told_though_none_of_them_has_another_event(place: Place) -> None:
    total = 500
    async with place.dial(SO_RCVBUF=4096, limit=16_384) as raw:
        await raw.join(place.token)
        assert await raw.follow("t/+") == [0]
        for number in range(total):
            await place.member.publish(f"t.{number}", bytes(4000))
        seen = missed = 0
        while seen + missed < total:
            told = await raw.hear()
            seen, missed = seen + 1, missed + int(dict(told.user_properties).get("iris-missed", 0))
        assert missed > 0
        assert seen + missed == total
        counted = place.door.statistics()
        assert (counted.delivered, counted.missed) == (seen, missed)


@pytest.mark.parametrize(("handling", "missed"), [(0, 80), (2, 0)])
@with_door(limits=ClientLimits(waiting=SubscriptionLimits(events=20)))
async def test_retained_values_for_which_there_was_no_room_are_told_to_who_wants_them(
    place: Place, handling: int, missed: int
) -> None:
    for number in range(100):
        await place.member.retain(f"kept.{number}", number)
    async with place.client() as raw:
        wanted = [mqtt5.TopicFilter("kept/+", retain_handling=mqtt5.RetainHandling(handling))]
        raw.send(mqtt5.SubscribePacket(9, wanted))
        lost = seen = 0
        answered = False
        while not answered or seen < (0 if handling else 20):
            told = await raw.hear()
            answered = answered or not isinstance(told, mqtt5.PublishPacket)
            if isinstance(told, mqtt5.PublishPacket):
                seen, lost = seen + told.retain, lost + int(dict(told.user_properties).get("iris-missed", 0))
        await place.member.publish("kept.end", b"end")
        told = await raw.hear()
        assert (told.payload, told.retain) == (b"end", False)
        lost += int(dict(told.user_properties).get("iris-missed", 0))
        assert (lost, seen) == (missed, 0 if handling else 20)


@pytest.mark.parametrize("less", [0, 1, 32, 100])
@with_door()
async def test_what_is_acknowledged_comes_also_where_it_has_the_largest_size(place: Place, less: int) -> None:
    async with (
        storing(place.member) as stored,
        place.dial(SO_RCVBUF=4096, limit=16_384) as raw,
        place.client() as other,
    ):
        await raw.join(place.token)
        assert await raw.follow("t/+") == [0]
        for number in range(50):
            await place.member.publish(f"t.{number}", bytes(10_000))
        payload = bytes((1 << 20) - less)
        other.send(mqtt5.PublishPacket("t/large", payload, qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=1))
        assert int((await other.hear()).reason_code) == 0
        await place.member.publish("t.last", b"")
        told = [await raw.hear() for _ in range(52)]
        assert [one.topic for one in told] == [*(f"t/{number}" for number in range(50)), "t/large", "t/last"]
        assert {len(one.payload) for one in told} == {10_000, len(payload), 0}
        assert place.door.statistics().missed == 0
        assert any(topic == "t.large" for topic, _ in stored)


@with_door(patched={"iris.doors.mqtt.wire._STALLED": 0.2})
async def test_a_client_that_does_not_read_at_all_is_disconnected(place: Place) -> None:
    """``run`` bounds the wait for the end and the will; ``is_well`` asserts that others are served."""
    async with place.dial(SO_RCVBUF=4096, limit=1) as raw:
        await raw.join(place.token, will=mqtt5.Will("wills"))
        await raw.follow("a")
        async with place.member.subscribe("wills") as events:
            while not place.door.statistics().stalled:
                await place.member.publish("a", bytes(200_000))
            await anext(events)
    await is_well(place)


@with_door()
async def test_messages_that_a_client_has_no_room_for_are_missed(place: Place) -> None:
    async with place.client(max_packet_size=100) as raw:
        assert await raw.follow("a") == [0]
        for payload in (bytes(200), bytes(200), b"1", b"2"):
            await place.member.publish("a", payload)
        told = await raw.hear()
        assert (told.payload, told.user_properties) == (b"1", [("iris-missed", "2")])
        assert (await raw.hear()).user_properties == []
    async with place.client("c", keep_alive=60, max_packet_size=12) as raw:
        raw.send(mqtt5.SubscribePacket(1, [mqtt5.TopicFilter(one) for one in "abcdefgh"]))
        assert await raw.end() == b"\xe0\x02\x95\x00"
    async with place.dial() as raw:  # less than what it has to receive at first
        raw.send(mqtt5.ConnectPacket("c", keep_alive=60, max_packet_size=11, password=place.token.encode()))
        assert await raw.end() == b"\x20\x03\x00\x95\x00"


@with_door(patched={"iris.doors.mqtt.publishing._CONFIRMED_WITHIN": 0.5})
async def test_who_sends_more_than_is_done_is_not_read(place: Place) -> None:
    async with place.client() as raw, place.member.subscribe_durable("a", overflow="wait") as events:
        for number in range(1, 400):
            raw.send(mqtt5.PublishPacket("a", bytes(50_000), qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=number))
        first = await events.receive_batch()
        raw.writer.transport.abort()
        assert sum(len(event.payload) for event in first) < 4 << 20
    await place.until(lambda: not place.door.statistics().connections)


def test_a_fault_of_the_door_is_told_and_costs_one_connection(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise ZeroDivisionError

    async def work(place: Place) -> None:
        async with place.client() as raw, place.client() as other:
            assert await raw.follow("a") == [0]
            with monkeypatch.context() as patched:
                patched.setattr("iris.doors.mqtt.connection.message_of", fail)
                await place.member.publish("a", b"")
                assert int((await raw.hear()).reason_code) == 0x80
                assert await raw.end() == b""
            other.send(mqtt5.PingReqPacket())
            assert isinstance(await other.hear(), mqtt5.PingRespPacket)

    with caplog.at_level(logging.ERROR, "iris"):
        run(work)
    assert "ZeroDivisionError" in caplog.text


@with_door()
async def test_noise_costs_its_connection(place: Place) -> None:
    """``is_well`` asserts that others are served, ``run`` that no task is left."""
    drawn = random.Random(7)

    async def attack(place: Place, sent: bytes) -> None:
        async with place.dial() as raw:
            raw.send(sent)
            raw.writer.write_eof()
            await raw.end()

    packets = [
        mqtt5.PublishPacket("a/b", b"x", user_properties=[("iris-client", "admin")]).write(),
        mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("a/#")], subscription_id=7).write(),
        mqtt5.UnsubscribePacket(2, ["a/#"]).write(),
    ]
    joined = mqtt5.ConnectPacket("", password=place.token.encode(), clean_start=True).write()
    for _ in range(6):
        noisy: list[bytes] = []
        for _ in range(20):
            data = bytearray(b"".join(drawn.choices(packets, k=4)))
            for _ in range(drawn.randint(0, 4)):
                data[drawn.randrange(len(data))] = drawn.randrange(256)
            noisy.append((joined if drawn.random() < 0.9 else b"") + bytes(data))
        await asyncio.gather(*(attack(place, sent) for sent in noisy))
    await place.until(lambda: not place.door.statistics().connections)
    await is_well(place)


@with_door(patched={"iris.doors.mqtt.reading._PACKET_WITHIN": 0.2})
async def test_a_packet_that_does_not_end_costs_its_connection(place: Place) -> None:
    for unfinished in (publish_3("a", bytes(100_000))[:-1], b"\x30", b"\x30\xff"):
        async with place.old_client(keep_alive=0) as raw:
            raw.send(unfinished)
            assert await raw.end() == b""
    async with place.old_client(keep_alive=0) as idle:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await idle.frame()
        idle.send(b"\xc0\x00")
        assert await idle.frame() == b"\xd0\x00"


@with_door(limits=ClientLimits(bytes=100_000))
async def test_what_packets_take_is_bounded_for_each_client(place: Place) -> None:
    async with place.client() as raw, place.client() as other, place.member.subscribe("a") as events:
        raw.send(publish_3("a", bytes(70_000))[:-1])  # which does not end yet
        await raw.writer.drain()
        for number in range(3):  # what is done counts no more
            other.send(mqtt5.PublishPacket("a", bytes(20_000 + number)))
            assert len((await anext(events)).payload) == 20_000 + number
        other.send(mqtt5.PublishPacket("a", bytes(50_000)))
        told = await other.hear()
        assert (int(told.reason_code), "100000 bytes of a client may wait" in told.reason_str) == (0x97, True)
    await place.until(lambda: not place.door.statistics().connections)
    async with place.client() as raw, place.member.subscribe("a") as events:
        raw.send(mqtt5.PublishPacket("a", bytes(90_000)))
        await anext(events)


@with_door()
async def test_a_flood_of_pings_holds_up_nobody(place: Place) -> None:
    async def flood(raw: Raw) -> None:
        try:
            while True:
                raw.writer.write(b"\xc0\x00" * 30_000)
                await raw.writer.drain()
        except ConnectionError:
            pass
        finally:
            raw.writer.transport.abort()  # what is on its way does not have to arrive

    async def drink(raw: Raw) -> None:
        with contextlib.suppress(ConnectionError):
            while await raw.reader.read(65_536):
                pass

    async with place.client() as raw:
        tasks = [asyncio.ensure_future(flood(raw)), asyncio.ensure_future(drink(raw))]
        took: list[float] = []
        for _ in range(2):
            began = time.thread_time()  # the door's thread is this one, whatever else the machine does
            await is_well(place)
            took.append(time.thread_time() - began)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert min(took) < 0.5


@with_door()
async def test_no_user_property_makes_a_client_another_one(place: Place) -> None:
    async with place.client() as raw, place.member.subscribe("a") as events:
        names = ("iris-client", "Iris-Client", " iris-client", "iris-client ", "IRIS-CLIENT")
        raw.send(mqtt5.PublishPacket("a", b"", user_properties=[(name, "admin") for name in names]))
        assert dict((await anext(events)).headers) == {"iris-client": "sensor"}


@with_door()
async def test_a_flood_of_connections_that_end_at_once_leaves_nothing(place: Place) -> None:
    """``until`` asserts that none is left, ``is_well`` that others are served."""

    async def knock(place: Place, number: int) -> None:
        async with place.dial() as raw:
            if number % 2:
                raw.send(connect_3(place.token))
            if number % 3:
                raw.writer.transport.abort()

    await asyncio.gather(*(knock(place, number) for number in range(200)))
    await is_well(place)
    await place.until(lambda: not place.door.statistics().connections)
