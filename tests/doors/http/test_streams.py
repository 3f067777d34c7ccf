"""The HTTP door: events as they come, and what a client misses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import iris
import iris.aio
from iris.doors import clients as clients_module
from iris.doors import grant, withdraw
from iris.doors.clients import ClientLimits
from iris.doors.http import HttpLimits
from iris.patterns.pubsub.subscribe import SubscriptionLimits
from tests.support.async_tests import in_realm
from tests.support.doors import Place, Run, greeters, next_event, open_place, rest_of, with_door


@with_door()
async def test_events_of_several_topics_come_with_what_belongs_to_them(place: Place) -> None:
    await place.member.retain("kept", "old")
    async with place.follow("topic=orders.*&topic=kept") as reader:
        assert await next_event(reader) == (
            "message", {"topic": "kept", "payload": "old", "missed": 0, "retained": True},
        )  # fmt: skip
        await place.post("/publish/orders.tea", {"n": 1}, {**place.bearer, "content-type": "application/json"})
        told = {"topic": "orders.tea", "payload": {"n": 1}, "missed": 0, "headers": {"iris-client": "web"}}
        assert await next_event(reader) == ("message", told)
        await place.member.publish("orders.tea", b"\x00")
        assert (await next_event(reader))[1]["encoding"] == "base64"
        await place.member.publish("orders.tea.green", b"")
        await place.member.publish("orders.milk", None)
        assert (await next_event(reader))[1]["topic"] == "orders.milk"


@with_door()
async def test_a_client_that_comes_back_is_told_of_a_gap(place: Place) -> None:
    async with place.follow("topic=a", "last-event-id: 0-7") as reader:
        assert await next_event(reader) == ("gap", {"missed": None})
        await place.member.publish("a", 1)
        assert (await next_event(reader))[1]["payload"] == 1


@with_door()
async def test_a_group_shares_its_events(place: Place) -> None:
    async with place.follow("topic=a&group=g") as one, place.follow("topic=a&group=g") as other:
        for number in range(2):
            await place.member.publish("a", number)
        assert {(await next_event(reader))[1]["payload"] for reader in (one, other)} == {0, 1}


@with_door()
async def test_a_group_of_clients_takes_nothing_from_one_of_members(place: Place) -> None:
    async with (
        place.member.subscribe("a", group="workers") as events,
        place.member.subscribe("a", group="door.web.workers") as shared,
        place.follow("topic=a&group=workers") as reader,
    ):
        for number in range(4):
            await place.member.publish("a", number)
        assert [(await anext(events)).payload for _ in range(4)] == [0, 1, 2, 3]
        theirs = [(await next_event(reader))[1]["payload"] for _ in range(2)]
        assert sorted(theirs + [(await anext(shared)).payload for _ in range(2)]) == [0, 1, 2, 3]
    for group in ("", "a.b", "a%20b", "x" * 120):
        told = await place.fetch("GET", f"/subscribe?topic=a&group={group}")
        assert (told.status, told.json()["code"]) == (400, "bad_group")


@with_door()
async def test_a_client_leaves_wildcards_and_groups_to_others(place: Place) -> None:
    async def code(place: Place, query: str) -> tuple[int, str]:
        told = await place.fetch("GET", f"/subscribe?{query}")
        return told.status, told.json()["code"]

    async def work(place: Place) -> None:
        shapes = "&".join(f"topic=a{'.b' * number}.*" for number in range(8))
        groups = "topic=g&group=g{}"
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(place.follow(shapes))
            for number in range(4):
                await stack.enter_async_context(place.follow(groups.format(number)))
            assert await code(place, "topic=*.a") == (429, "too_many_shapes")
            assert await code(place, groups.format(4)) == (429, "too_many_groups")
            more = "topic=b.*&topic=a&topic=g"  # of a shape that is there, and without any
            async with place.follow(more), place.follow(groups.format(0)), place.follow("topic=h&group=g4"):
                pass
            place.token = grant(place.tokens, "other", subscribe=(">",))
            async with asyncio.timeout(30):
                while len(place.clients) < 2:
                    await asyncio.sleep(0.01)
            async with place.follow("topic=*.a"), place.follow(groups.format(4)):
                pass

    following = asyncio.create_task(place.clients.follow())
    try:
        await work(place)
    finally:
        following.cancel()
        await asyncio.wait([following])


@with_door(limits=ClientLimits(subscriptions=3))
async def test_subscriptions_of_all_streams_of_a_client_are_bounded(place: Place) -> None:
    async with place.follow("topic=a&topic=b"):
        told = await place.fetch("GET", "/subscribe?topic=a&topic=b")
        assert (told.status, told.json()["code"]) == (429, "too_many_subscriptions")
        async with place.follow("topic=c"):
            assert (await place.fetch("GET", "/subscribe?topic=d")).status == 429
    while place.clients.named("web").statistics().subscriptions:  # a stream ends a little after its connection
        await asyncio.sleep(0.01)
    async with place.follow("topic=a&topic=b&topic=c"):
        pass


@with_door(limits=ClientLimits(waiting=SubscriptionLimits(events=64, bytes=1 << 20)))
async def test_a_client_that_does_not_read_is_told_what_it_has_missed(place: Place) -> None:
    total = 3_000
    async with place.follow("topic=a", SO_RCVBUF=4096, limit=16_384) as reader:
        for number in range(total):
            await place.member.publish("a", {"number": number, "filling": "x" * 1000})
        seen, missed, last = 0, 0, -1
        while last < total - 1:
            _, told = await next_event(reader)
            assert told["payload"]["number"] == last + 1 + told["missed"]
            last, seen, missed = told["payload"]["number"], seen + 1, missed + told["missed"]
        assert missed > 0
        assert seen + missed == total
        counted = place.door.statistics()
        assert (counted.delivered, counted.missed) == (seen, missed)


@with_door(limits=ClientLimits(waiting=SubscriptionLimits(events=64, bytes=1 << 20)))
async def test_what_is_lost_on_many_topics_is_told_though_none_of_them_has_another_event(place: Place) -> None:
    total = 2000
    async with place.follow("topic=t.*", SO_RCVBUF=4096, limit=16_384) as reader:
        for number in range(total):
            await place.member.publish(f"t.{number}", "x" * 1000)
        seen = missed = 0
        while seen + missed < total:
            _, told = await next_event(reader)
            seen, missed = seen + 1, missed + told["missed"]
        assert missed > 0
        assert seen + missed == total
        counted = place.door.statistics()
        assert (counted.delivered, counted.missed) == (seen, missed)


@with_door(limits=ClientLimits(waiting=SubscriptionLimits(events=20)))
async def test_retained_values_for_which_there_was_no_room_are_told(place: Place) -> None:
    for number in range(100):
        await place.member.retain(f"kept.{number}", number)
    async with place.follow("topic=kept.*") as reader:
        seen = missed = 0
        while seen + missed < 100:
            _, told = await next_event(reader)
            seen, missed = seen + 1, missed + told["missed"]
        assert (seen, missed) == (20, 80)


def test_what_is_lost_last_is_told_by_a_gap(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_beside(_: object, waiting: object) -> object:
        return waiting

    monkeypatch.setattr(clients_module, "_beside", nothing_beside)

    async def work(place: Place) -> None:
        async with place.follow("topic=a") as reader:
            await place.member.publish("a", 1)
            assert (await next_event(reader))[1]["payload"] == 1
            await place.member.publish("a", bytes(2000))
            assert await next_event(reader) == ("gap", {"missed": 1})
            await place.member.publish("a", 3)
            assert (await next_event(reader))[1]["missed"] == 0
        assert place.door.statistics().missed == 1

    limits = ClientLimits(waiting=SubscriptionLimits(events=20, bytes=1000))
    run(work, limits=limits, door_limits=HttpLimits(beat=0.05))


@with_door()
async def test_an_event_of_the_largest_size_comes_and_leaves_those_that_wait(place: Place) -> None:
    async with place.follow("topic=t.*", SO_RCVBUF=4096, limit=16_384) as reader:
        for number in range(500):
            await place.member.publish(f"t.{number}", b"x" * 1000)
        await place.member.publish("t.large", bytes(1 << 20))
        await place.member.publish("t.last", b"")
        read = bytearray()
        while b'"t.last"' not in read or not read.endswith(b"\n\n\r\n"):
            read += await reader.read(65_536)
        told = [json.loads(line[6:]) for line in read.split(b"\n") if line.startswith(b"data: ")]
        assert [one["topic"] for one in told] == [*(f"t.{number}" for number in range(500)), "t.large", "t.last"]
        assert {one["missed"] for one in told} == {0}


async def large_answers(place: Place, count: int, *, until_read: Callable[[], object]) -> list[Any]:
    """Survey members that answer 600 kB each, read nothing for a while, and return the lines."""
    async with AsyncExitStack() as stack:
        for _ in range(count - 1):
            member = await stack.enter_async_context(iris.aio.open_node("greeters"))
            await stack.enter_async_context(member.join("greeters", greeters(place.counted)))
        while len(place.node.members("greeters")) < count:
            await asyncio.sleep(0.01)
        size = json.dumps(600_000).encode()
        asked = place.head(
            "POST", "/survey/greeters?operation=large&timeout=20", "connection: close",
            "content-type: application/json", f"content-length: {len(size)}",
        )  # fmt: skip
        async with place.dial(SO_RCVBUF=4096, limit=16_384) as (reader, writer):
            writer.write(asked + size)
            while not until_read():
                await asyncio.sleep(0.01)
            _, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
    pieces = body.split(b"\r\n")  # chunks: length, data, length, ...
    return [json.loads(line) for line in b"".join(pieces[1::2]).splitlines()]


@with_door(limits=ClientLimits(bytes=1 << 20), send_buffer=16_384)
async def test_a_survey_ends_whose_answers_are_not_read(place: Place) -> None:
    *lines, last = await large_answers(place, 3, until_read=lambda: place.door.statistics().refused[429])
    assert (last["error"]["status"], last["error"]["code"]) == (429, "too_many_bytes")
    assert len(lines) < 3
    place.clients.named("web").hold(1 << 20)  # nothing is left of those that were cut off


@with_door(send_buffer=16_384)
async def test_a_survey_of_a_slow_reader_has_all_answers(place: Place) -> None:
    client = place.clients.named("web")
    *lines, last = await large_answers(place, 3, until_read=lambda: client.statistics().bytes > 1_500_000)
    assert last["ended_by"] == "all"
    assert len({line["member"] for line in lines}) == 3
    assert client.statistics().bytes == 0


@pytest.mark.parametrize("query", ["", "topic=", "group=a", "topic=a&group=b&group=c", "topic=a&limit=3", "topic=a..b"])
@with_door()
async def test_what_cannot_be_followed_is_refused(place: Place, query: str) -> None:
    told = await place.fetch("GET", f"/subscribe?{query}")
    assert told.status in (400, 403)


@with_door(patched={"iris.doors.clients._REREAD": 0.01}, limits=ClientLimits(streams=1))
async def test_what_a_client_follows_ends_with_its_token(place: Place) -> None:
    following = asyncio.ensure_future(place.clients.follow())
    async with place.follow("topic=a") as reader, place.dial() as (kept, writer):
        writer.write(place.head("POST", "/request/greeters", "content-length: 1") + b"x")
        await kept.readuntil(b"\r\n\r\nx")
        full = await place.fetch("GET", "/subscribe?topic=a")
        assert (full.status, full.json()["code"]) == (429, "too_many_streams")
        withdraw(place.tokens, "web")
        kind, told = await next_event(reader)
        assert (kind, told["status"], told["code"]) == ("end", 401, "ended")
        writer.write(place.head("POST", "/request/greeters", "content-length: 1") + b"x")
        assert (await kept.readline()).startswith(b"HTTP/1.1 401")
    assert (await place.fetch("GET", "/subscribe?topic=a")).status == 401
    following.cancel()


@in_realm
async def test_a_door_that_closes_ends_what_is_open(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with open_place(tmp_path) as place:
            reader = await stack.enter_async_context(place.follow("topic=a"))
            asking = asyncio.ensure_future(place.post("/request/greeters?operation=never&timeout=0.5"))
            await place.counted.working.wait()
        kind, told = await next_event(reader)
        assert (kind, told["code"]) == ("end", "ended")
        assert (await asking).status == 504


@with_door()
async def test_an_event_is_one_line(place: Place) -> None:
    async with place.follow("topic=a") as reader:
        await place.member.publish("a", "one\ntwo\r\n\u2028data: x")
        assert (await next_event(reader))[1]["payload"] == "one\ntwo\r\n\u2028data: x"
