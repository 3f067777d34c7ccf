"""The door for nng: what PUSH publishes and SUB follows, and how losses show."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pynng
import pytest

from iris.doors import grant, withdraw
from iris.doors.clients import ClientLimits
from iris.doors.nng import counters, events
from iris.doors.nng.events import TopicNumbers
from iris.patterns.pubsub.subscribe import SubscriptionLimits
from tests.doors.nng.place import Place
from tests.support.doors import Run, with_door

EVENT = re.compile(
    rb"(\S+) (bytes|text|json|msgpack) id=([0-9a-f]{8})-(\d+)(?: missed=(\d+))?( retained=true)?\n(.*)", re.DOTALL
)


async def event_at(socket: pynng.Socket) -> tuple[str, str, int, int, bytes]:
    """Receive an event: its topic, form, number, how many are missed, and payload."""
    found = EVENT.fullmatch(await socket.arecv())
    assert found
    return found[1].decode(), found[2].decode(), int(found[4]), int(found[5] or 0), found[7]


async def following(place: Place, *prefixes: bytes, count: int = 1, **options: int) -> pynng.Sub0:
    """Return a socket that follows topics."""
    socket = await place.socket(pynng.Sub0, "sub", **options)
    assert isinstance(socket, pynng.Sub0)
    for prefix in prefixes:
        socket.subscribe(prefix)
    await place.connected("sub", count)
    return socket


async def run_of(socket: pynng.Socket) -> str:
    """Receive an event, and return the run of its number."""
    found = EVENT.fullmatch(await socket.arecv())
    assert found
    return found[3].decode()


async def until_followed(place: Place, topic: str) -> None:
    """Wait until the member knows that the door follows a topic: its first events may find nobody."""
    before = place.door.statistics().followed
    while place.door.statistics().followed == before:
        await place.member.publish(topic, b"")
        await asyncio.sleep(0.01)


@with_door()
async def test_what_is_pushed_is_published_and_what_is_published_is_followed(place: Place) -> None:
    with await following(place, b"orders.", b"all ") as sub, await place.socket(pynng.Push0, "push") as push:
        await until_followed(place, "other")
        async with place.member.subscribe("orders.>") as events:
            await push.asend(b'orders.tea json\n{"n": 1}')
            event = await anext(events)
            assert (event.topic, event.payload, dict(event.headers)) == (
                "orders.tea", {"n": 1}, {"iris-client": "tools"},
            )  # fmt: skip
        assert await event_at(sub) == ("orders.tea", "json", 1, 0, b'{"n":1}')
        await place.member.publish("orders.milk", "white")
        await place.member.publish("orders", b"not below it")
        await place.member.publish("allotment", b"another topic")
        await place.member.publish("orders.tea", b"\x00\n")
        await place.member.publish("all", None)
        assert await event_at(sub) == ("orders.milk", "text", 1, 0, b"white")
        assert await event_at(sub) == ("orders.tea", "bytes", 2, 0, b"\x00\n")
        assert await event_at(sub) == ("all", "json", 1, 0, b"null")
        assert place.door.statistics().published == 1


@with_door()
async def test_an_event_that_is_kept_says_so(place: Place) -> None:
    with await place.socket(pynng.Push0, "push") as push:
        await push.asend(b"kept retain=true\nx")
        await place.until(lambda: place.door.statistics().published)
        async with place.member.subscribe("kept") as events:
            event = await anext(events)
            assert (event.payload, event.retained) == (b"x", True)


@with_door(rights={"subscribe": ("a.*", "*.b", "a.b")})
async def test_events_that_several_patterns_match_come_once_and_those_of_others_never(place: Place) -> None:
    with await following(place, b"") as sub:
        await until_followed(place, "a.b")
        await until_followed(place, "a.c")
        for topic in ("x.y", "a.b", "c.d", "a.c", "c.b", "a.end", "end.b"):
            await place.member.publish(topic, topic)
        seen: list[str] = []
        while not {"a.end", "end.b"} <= set(seen):
            topic, form, *_ = await event_at(sub)
            seen += [topic] if form == "text" else []
        assert sorted(seen) == ["a.b", "a.c", "a.end", "c.b", "end.b"]


def test_what_may_not_be_pushed_is_counted_and_in_the_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    bad = (
        b"secret.plans",
        b"",
        b"orders json\n{",
        b"a..b",
        b"orders confirm=true",
        b"orders *",
        b"orders\n" + bytes(1 << 20) + b"x",
    )

    async def work(place: Place) -> None:
        with await place.socket(pynng.Push0, "push") as push:
            for message in bad:
                await push.asend(message)
            await place.until(lambda: place.door.statistics().refused.total() == len(bad))
            await push.asend(b"orders")
            await place.until(lambda: place.door.statistics().published == 1)

    run(work, rights={"publish": ("orders", "orders.>")})
    told = [record.getMessage() for record in caplog.records if "PUSH" in record.getMessage()]
    assert len(told) == 3  # not allowed, malformed, too large
    assert "client tools may not publish 'secret.plans' (logged once" in told[0]


@with_door()
async def test_who_does_not_read_loses_events_and_sees_which_and_holds_up_nobody(place: Place) -> None:
    total = 2000
    async with place.dial("sub") as raw:
        raw.stop_reading()
        with await following(place, b"a ", count=2, recv_buffer_size=8192) as sub:
            await until_followed(place, "b")
            for number in range(total):
                await place.member.publish("a", b"%d " % number + bytes(1000))
                if number % 32 == 0:
                    await asyncio.sleep(0.001)
            seen = lost = last = 0
            while last < total:
                _, _, number, missed, payload = await event_at(sub)
                assert payload.startswith(b"%d " % (number - 1))
                assert missed == 0
                lost, seen, last = lost + number - last - 1, seen + 1, number
            assert seen + lost == total
            assert lost < total / 2
            told = place.door.statistics()
            assert (told.followed >= total, told.missed) == (True, 0)
            assert told.unread >= total - 2 * 256 - 600  # what waits in nng and in the buffers of the system
    await place.connected("sub", 0)
    assert place.door.statistics().unread >= total - 600


@with_door(limits=ClientLimits(waiting=SubscriptionLimits(events=16, bytes=1 << 20)))
async def test_what_the_door_itself_misses_is_told_with_the_next_event(place: Place) -> None:
    with await following(place, b"a ", recv_buffer_size=8192) as sub:
        await until_followed(place, "b")
        await until_followed(place, "a")
        published = seen = missed_in_all = 0
        while not missed_in_all:  # unless the door is as quick as they come
            for _ in range(1000):
                await place.member.publish("a", published)
                published += 1
            payload = b""
            while payload != b"%d" % (published - 1):
                _, _, _, missed, payload = await event_at(sub)
                if payload == b"":  # of those until it followed
                    continue
                seen, missed_in_all = seen + 1, missed_in_all + missed
                assert int(payload) == seen + missed_in_all - 1
        assert missed_in_all == place.door.statistics().missed


def test_an_event_that_fails_is_a_gap_and_in_the_log_and_the_next_one_comes(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counters, "_PAUSE", 0.01)
    monkeypatch.setattr(events, "_PAUSE", 0.01)

    def fail(*_: object, **__: object) -> bytes:
        raise ZeroDivisionError

    async def work(place: Place) -> None:
        with await following(place, b"a ") as sub:
            await until_followed(place, "a")
            with monkeypatch.context() as patched:
                patched.setattr(events, "event_of", fail)
                while "following > has failed, and begins anew" not in caplog.text:
                    await place.member.publish("a", b"poison")
                    await asyncio.sleep(0.01)
            await until_followed(place, "a")
            first = await run_of(sub)
            while await run_of(sub) == first:
                pass  # until the counting has begun anew: what was missed is not known
            with await place.socket(pynng.Push0, "push") as push:
                await push.asend(b"pushed")
                await place.until(lambda: place.door.statistics().published)

    run(work)
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("part", ["Taking._publish", "Following.run", "Taking.run"])
def test_what_fails_is_in_the_log_and_begins_anew(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    monkeypatch.setattr(counters, "_PAUSE", 0.01)
    name, _, method = part.partition(".")
    kind = getattr(events, name)
    done = getattr(kind, method)
    failed: list[bool] = []

    async def fail_first(self: Any, *arguments: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ZeroDivisionError
        return await done(self, *arguments)

    monkeypatch.setattr(kind, method, fail_first)

    async def work(place: Place) -> None:
        with await following(place, b"a ") as sub, await place.socket(pynng.Push0, "push") as push:
            while not failed or not place.door.statistics().published:
                await push.asend(b"a\nx")
                await asyncio.sleep(0.01)
            await until_followed(place, "a")
            assert (await event_at(sub))[0] == "a"

    run(work)
    (record,) = [one for one in caplog.records if one.exc_info and one.exc_info[0] is ZeroDivisionError]
    assert record.levelname == "ERROR"


@with_door(patched={"iris.doors.nng.events._LOOK": 1.0})
async def test_who_takes_nothing_is_ended_and_who_reads_is_not(place: Place) -> None:
    async with place.dial("sub") as raw:
        raw.stop_reading()
        with await following(place, b"a ", count=2, recv_buffer_size=8192) as sub:
            await until_followed(place, "b")
            while not place.door.statistics().stalled:
                await place.member.publish("a", bytes(100_000))
                await event_at(sub)
            await place.connected("sub", 1)
            await place.member.publish("a", b"still")
            while (await event_at(sub))[4] != b"still":
                pass
    assert place.door.statistics().stalled == 1


@pytest.mark.parametrize(("size", "most"), [(1_000_000, 16), (100_000, 167), (1000, 256)])
@with_door()
async def test_what_waits_for_those_who_are_slow_is_bounded_in_bytes_and_in_messages(
    place: Place, size: int, most: int
) -> None:
    total = 2 * most + 16
    async with place.dial("sub") as raw:
        raw.stop_reading()
        await place.connected("sub")
        await until_followed(place, "a")
        for _ in range(total):
            followed = place.door.statistics().followed
            await place.member.publish("a", bytes(size))
            while place.door.statistics().followed == followed:
                await asyncio.sleep(0.005)
        on_their_way = 1 + 500_000 // size  # in the buffers of the system
        unread = place.door.statistics().unread
        assert total - most - on_their_way <= unread <= total


def test_an_event_too_large_for_clients_is_a_gap(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work(place: Place) -> None:
        with await following(place, b"a ") as sub:
            await until_followed(place, "b")
            for payload in (b"1", bytes((1 << 20) - 10), b"3"):
                await place.member.publish("a", payload)
            assert [(await event_at(sub))[2::2] for _ in range(2)] == [(1, b"1"), (3, b"3")]
            assert place.door.statistics().missed == 1

    run(work)
    assert "an event on a has " in caplog.text


@with_door(
    patched={"iris.doors.clients._REREAD": 0.01, "iris.doors.nng.events._PAUSE": 0.01}, rights={"subscribe": ("a",)}
)
async def test_who_follows_is_sent_what_the_client_may_see_by_now(place: Place) -> None:
    reading = asyncio.ensure_future(place.clients.follow())
    with await following(place, b"") as sub:
        await until_followed(place, "a")
        withdraw(place.tokens, "tools")
        await place.until(lambda: len(place.clients) == 0)
        grant(place.tokens, "tools", subscribe=("b",))
        await until_followed(place, "b")
        await place.member.publish("a", "last")
        await place.member.publish("b", "last")
        while (event := await event_at(sub))[4] != b"last":
            pass
        assert event[0] == "b"
    reading.cancel()


def test_a_topic_that_was_forgotten_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_TOPICS", 2)
    numbers = TopicNumbers()
    first = numbers.next("a")
    run, _, number = first.partition("-")
    assert number == "1"
    assert numbers.next("a") == f"{run}-2"
    numbers.next("b")
    assert numbers.next("a") == f"{run}-3"
    numbers.next("c")  # b is forgotten
    assert numbers.next("a") == f"{run}-4"
    assert numbers.next("b").endswith("-1")
    numbers.next("c")
    again = numbers.next("a")
    assert again.endswith("-1")
    assert not again.startswith(run)
