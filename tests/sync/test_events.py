"""Events of threads: they are published without a wait for each, and all that trio promises holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import pytest
import trio

import iris
import iris.sync
from iris.sync.handles import _ConfirmedEvent
from tests.support.threads import inner_of, is_held, portal_of, publisher_of, standing_still

SMALL = iris.SubscriptionLimits(events=4)

pytestmark = pytest.mark.usefixtures("own_home")


@contextmanager
def open_reader(limits: iris.SubscriptionLimits | None = None) -> Iterator[iris.sync.Subscription]:
    """Open a node that subscribes to everything, and waits for nothing to be lost."""
    with iris.sync.open_node("reader") as reader, reader.subscribe("a.>", overflow="wait", limits=limits) as events:
        yield events


def wait_linked(node: iris.sync.Node, topic: str, events: iris.sync.Subscription) -> None:
    """Publish until the subscriber hears of it."""
    ends = time.monotonic() + 30
    while not events.statistics().delivered + events.statistics().waiting:
        assert time.monotonic() < ends
        node.publish(topic, b"begin")
        time.sleep(0.02)


def payloads(events: iris.sync.Subscription, count: int) -> list[object]:
    taken: list[object] = []
    while len(taken) < count:
        taken += [event.payload for event in events.receive_batch(64) if event.payload != b"begin"]
    return taken


@pytest.mark.parametrize(("limits", "count"), [(None, 4000), (SMALL, 600)])
def test_events_of_a_thread_come_in_its_order_whatever_they_are(
    limits: iris.SubscriptionLimits | None, count: int
) -> None:
    """With a small window the publisher waits in line again and again."""
    with open_reader(limits) as events, iris.sync.open_node("writer") as writer:
        wait_linked(writer, "a.b", events)

        def publish_one(number: int) -> None:
            match number % 50:
                case 7:
                    writer.publish("a.b", number)
                case 8:
                    writer.publish("a.b", number, headers={"a": "b"})
                case 9:
                    writer.retain("a.b", number)
                case _:
                    writer.publish("a.b", b"%d" % number)

        def publish() -> None:
            for number in range(count):
                publish_one(number)

        with ThreadPoolExecutor(1) as thread:
            publishing = thread.submit(publish)
            taken = payloads(events, count)
            publishing.result(30)
    assert [int(number) for number in taken] == list(range(count))  # type: ignore[call-overload]
    assert events.statistics().missed == 0


def test_what_was_published_before_the_node_was_left_is_sent() -> None:
    with open_reader() as events:
        with iris.sync.open_node("writer") as writer:
            wait_linked(writer, "a.b", events)
            for number in range(3000):
                writer.publish("a.b", b"%d" % number)
        assert payloads(events, 3000) == [b"%d" % number for number in range(3000)]


def test_leaving_a_node_waits_for_subscribers_who_want_it_to() -> None:
    with open_reader(SMALL) as events:
        waits, left = threading.Event(), threading.Event()
        count = 0

        def publish() -> None:
            nonlocal count
            with iris.sync.open_node("writer") as writer:
                wait_linked(writer, "a.b", events)
                while portal_of(writer).events.is_empty:
                    writer.publish("a.b", b"%d" % count)
                    count += 1
                    time.sleep(0.001)
                waits.set()
            left.set()

        with ThreadPoolExecutor(1) as thread:
            publishing = thread.submit(publish)
            assert waits.wait(30)
            assert not left.wait(0.3)
            assert payloads(events, count) == [b"%d" % number for number in range(count)]
            publishing.result(30)


def test_what_threads_have_posted_is_counted_until_it_is_published() -> None:
    with open_reader() as events, iris.sync.open_node("writer") as writer:
        wait_linked(writer, "a.b", events)
        with standing_still(writer):
            for number in range(3):
                writer.publish("a.b", b"%01000d" % number)
            posted = publisher_of(writer).posted
            assert (len(posted), posted.bytes) == (3, 3000)
        assert payloads(events, 3) == [b"%01000d" % number for number in range(3)]
        publishing = writer.statistics().publishing
        assert (publishing.posted, publishing.posted_bytes) == (0, 0)


def test_a_thread_is_told_what_refuses_its_event() -> None:
    with open_reader() as events, iris.sync.open_node("writer", config=iris.Config(max_payload=2**16)) as writer:
        wait_linked(writer, "a.b", events)
        with pytest.raises(iris.PayloadTooLarge):
            writer.publish("a.b", bytes(2**16 + 1))
        with pytest.raises(iris.ConfigError):
            writer.publish("a..b", b"")
        with pytest.raises(iris.ConfigError):
            writer.publish(["a.b"], b"")  # type: ignore[arg-type]
        with pytest.raises(iris.LocalProtocolError):
            writer.publish("a.b", object())
    with pytest.raises(trio.ClosedResourceError):
        writer.publish("a.b", b"")


def test_many_threads_publish_and_ask_at_a_time() -> None:
    shop = iris.Service("shop")

    @shop.request
    def echo(request: iris.Request) -> object:
        return request.payload

    with (
        iris.sync.open_node("member") as member,
        member.join("shop", shop),
        open_reader() as events,
        iris.sync.open_node("writer") as writer,
        ThreadPoolExecutor(16) as threads,
    ):
        writer.wait_for("shop")
        wait_linked(writer, "a.0", events)

        def work(thread: int) -> None:
            for number in range(200):
                writer.publish(f"a.{thread}", b"%d" % number)
                assert writer.request("shop", number) == number

        working = [threads.submit(partial(work, thread)) for thread in range(16)]
        taken: dict[str, list[bytes]] = {}
        while sum(map(len, taken.values())) < 16 * 200:
            for event in events.receive_batch():
                if event.payload != b"begin":
                    taken.setdefault(event.topic, []).append(event.payload)
        for one in working:
            one.result(30)
    assert set(map(tuple, taken.values())) == {tuple(b"%d" % number for number in range(200))}


async def test_what_a_handler_in_a_thread_has_published_is_sent_when_its_member_leaves() -> None:
    shop = iris.Service("shop")

    @shop.request(thread=True)
    def tell(_: iris.Request, node: iris.sync.Node) -> None:
        for number in range(2000):
            node.publish("a.b", b"%d" % number)

    async with (
        iris.open_node("member") as member,
        iris.open_node("reader") as reader,
        reader.subscribe("a.>", overflow="wait") as events,
    ):
        async with member.join("shop", shop):
            await reader.request("shop", wait=5)
        with trio.fail_after(30):
            assert [(await anext(events)).payload for _ in range(2000)] == [b"%d" % number for number in range(2000)]


@pytest.mark.parametrize("how", ["request", "tunnel", "broadcast"])
def test_what_a_thread_sends_comes_after_the_events_that_it_has_posted_and_others_do_not_wait(how: str) -> None:
    count, patient = 20, iris.Config(broadcast_patience=60.0)
    shop, heard = iris.Service("shop"), SimpleQueue[int]()

    @shop.request
    def ask(_: iris.Request) -> int:
        return events.statistics().received

    @shop.broadcast
    def hear(_: iris.Message) -> None:
        heard.put(events.statistics().received)

    @shop.tunnel
    def talk(tunnel: iris.sync.Tunnel) -> None:
        for _ in tunnel:
            tunnel.send(events.statistics().received)

    def received(tunnel: iris.sync.Tunnel) -> object:
        """Return how many events had come when something came that is sent now."""
        if how == "request":
            return writer.request("shop", timeout=60)
        if how == "broadcast":
            writer.broadcast("shop", b"")
            return heard.get(timeout=60)
        tunnel.send(b"")
        return tunnel.receive()

    with (
        iris.sync.open_node("reader") as reader,
        reader.subscribe("a.b", overflow="wait", limits=SMALL) as events,
        reader.join("shop", shop),
        iris.sync.open_node("writer", config=patient) as writer,
        ThreadPoolExecutor(1) as thread,
        writer.open_tunnel("shop", wait=30) as tunnel,
    ):
        wait_linked(writer, "a.b", events)
        while not is_held(writer, "a.b"):
            if events.statistics().received < 3:
                writer.publish("a.b", b"begin")
            time.sleep(0.01)
        before = events.statistics().received

        def post_and_send() -> object:
            with standing_still(writer):  # else the second event would wait for the first
                for number in range(count):
                    writer.publish("a.b", b"%d" % number)
            return received(tunnel)

        sending = thread.submit(post_and_send)
        while portal_of(writer).events.is_empty:
            time.sleep(0.001)
        assert received(tunnel) == before
        assert not sending.done()
        assert payloads(events, count) == [b"%d" % number for number in range(count)]
        assert sending.result(60) == before + count


def test_confirmed_events_of_a_thread_are_all_confirmed_when_it_leaves_the_block() -> None:
    count, stored = 3000, list[object]()

    def store(events: iris.sync.Subscription) -> None:
        while len(stored) < count:
            batch = events.receive_batch()
            stored.extend(event.payload for event in batch)
            events.confirm(batch)

    with (
        iris.sync.open_node("store") as store_node,
        store_node.subscribe_durable("a.b") as events,
        iris.sync.open_node("writer") as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        storing = thread.submit(store, events)
        with writer.confirming(timeout=60) as confirming:
            for number in range(count):
                confirming.publish("a.b", b"%d" % number if number % 100 else number)
                if number == 1500:
                    assert confirming.published == number + 1
        assert (confirming.published, confirming.confirmed) == (count, count)
        storing.result(30)
    assert [int(payload) for payload in stored] == list(range(count))  # type: ignore[call-overload]


def test_confirmed_events_that_are_posted_and_not_confirmed_are_an_error_when_the_block_is_left() -> None:
    with (
        iris.sync.open_node("store") as store_node,
        store_node.subscribe_durable("a.b"),
        iris.sync.open_node("writer") as writer,
    ):

        def publish() -> None:
            with writer.confirming(timeout=0.2) as events:
                for number in range(100):
                    events.publish("a.b", b"%d" % number)

        with pytest.raises(iris.RequestTimeout, match="has confirmed within"):
            publish()


def test_confirmed_events_that_stand_in_line_are_published_before_the_block_is_left() -> None:
    """And one that is lost there is an error of the block."""
    with (
        iris.sync.open_node("store") as store_node,
        store_node.subscribe_durable("a.b") as kept,
        iris.sync.open_node("writer") as writer,
    ):
        with writer.confirming(timeout=60) as events:
            events.publish("a.b", b"first")
            with standing_still(writer):
                for _ in range(100):  # each a run of its own, of which others get a turn after 32
                    portal_of(writer).post(_ConfirmedEvent(inner_of(events), "a.b", b"x" * 200_000))
            confirmed = 0
            with ThreadPoolExecutor(1) as thread:

                def confirm() -> None:
                    nonlocal confirmed
                    while confirmed < 101:
                        batch = kept.receive_batch()
                        kept.confirm(batch)
                        confirmed += len(batch)

                confirming = thread.submit(confirm)
                portal_of(writer).call_plain(int)
                confirming.result(60)
        assert (events.confirmed, confirmed) == (101, 101)
        with pytest.raises(iris.NotSent), writer.confirming(timeout=60) as events:
            _ConfirmedEvent(inner_of(events), "a.b", b"").lose()


@pytest.mark.parametrize("how", ["leave", "wait"])
def test_confirmed_events_of_other_threads_that_stand_in_line_are_waited_for_too(how: str) -> None:
    with (
        iris.sync.open_node("store") as store_node,
        store_node.subscribe_durable("a.b") as kept,
        iris.sync.open_node("writer") as writer,
        ThreadPoolExecutor(2) as threads,
    ):

        def confirm() -> None:
            confirmed = 0
            while confirmed < 101:
                batch = kept.receive_batch()
                kept.confirm(batch)
                confirmed += len(batch)

        def post() -> None:
            for _ in range(100):  # each a run of its own, of which others get a turn after 32
                portal_of(writer).post(_ConfirmedEvent(inner_of(events), "a.b", b"x" * 200_000))

        confirming = threads.submit(confirm)
        with writer.confirming(timeout=60) as events:
            events.publish("a.b", b"first")
            with standing_still(writer) as goes_on:
                threads.submit(post).result(30)
                threading.Timer(0.1, goes_on.set).start()
                if how == "wait":
                    events.wait_confirmed()
                    assert events.confirmed == 101
        assert (events.confirmed, events.published) == (101, 101)
        confirming.result(60)


@pytest.mark.parametrize("fallback", [None, b"else"])
def test_a_request_that_waits_behind_events_ends_in_its_time_and_is_sent_to_nobody(fallback: bytes | None) -> None:
    shop, asked = iris.Service("shop"), list[object]()

    @shop.request
    def ask(request: iris.Request) -> bytes:
        asked.append(request.payload)
        return b"reply"

    with (
        open_reader(SMALL) as events,
        iris.sync.open_node("shop") as member,
        member.join("shop", shop),
        iris.sync.open_node("writer", config=iris.Config(broadcast_patience=60.0)) as writer,
        writer.state("writer") as document,
    ):
        writer.wait_for("shop")
        wait_linked(writer, "a.b", events)
        while not is_held(writer, "a.b"):
            if events.statistics().received < 3:
                writer.publish("a.b", b"begin")
            time.sleep(0.01)
        writer.publish("a.b", b"waits")
        began = time.monotonic()
        if fallback is None:
            with pytest.raises(iris.RequestTimeout, match="had published before"):
                writer.request("shop", b"late", timeout=0.2)
        else:
            assert writer.request("shop", b"late", timeout=0.2, fallback=fallback) == fallback
        with pytest.raises(iris.RequestTimeout, match="had published before"):
            writer.publish_confirmed("a.b", b"late", timeout=0.2)
        with pytest.raises(iris.RequestTimeout, match=r"^0\.2 s are over: .* had published before"):
            document.settled(1, 0.2)
        with pytest.raises(iris.RequestTimeout, match="had published before"), writer.open_tunnel("shop", timeout=0.2):
            raise AssertionError("it is not open")
        assert [found.node for found in writer.members("shop")] == [member.id]
        assert writer.statistics().subscriptions == {}
        writer.wait_for("shop", 1, 0.2)
        assert not portal_of(writer).events.is_empty
        assert time.monotonic() - began < 10
        assert payloads(events, 1) == [b"waits"]
        assert writer.request("shop", b"in time", timeout=30) == b"reply"
    assert asked == [b"in time"]


def test_a_retained_value_expires_whichever_thread_has_retained_it() -> None:
    with iris.sync.open_node("writer") as writer:
        writer.retain("a.b", 1, expires=60)
        writer.retain("a.c", 2, expires=0.05)
        ends = time.monotonic() + 30
        while writer.statistics().publishing.retained > 1:
            assert time.monotonic() < ends
            time.sleep(0.02)
        with writer.subscribe("a.>") as events:
            assert [(event.payload, event.retained) for event in events.receive_batch()] == [(1, True)]


def test_a_subscription_that_fails_raises_in_its_thread() -> None:
    with (
        iris.sync.open_node("reader") as reader,
        reader.subscribe("a.>", overflow="fail", limits=SMALL) as events,
        iris.sync.open_node("writer") as writer,
    ):
        wait_linked(writer, "a.b", events)
        ends = time.monotonic() + 30
        while not events.statistics().too_slow:
            assert time.monotonic() < ends
            writer.publish("a.b", b"more")
        for take in (partial(next, events), events.receive_batch):
            with pytest.raises(iris.SubscriberTooSlow, match="was too slow"):
                take()
