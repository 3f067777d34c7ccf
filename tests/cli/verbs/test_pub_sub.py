"""``iris pub`` and ``iris sub``, each in this process and with a node on the other side."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

import iris
from iris.cli.terminal import Lines
from tests.support.desk import Desk, publish_when_heard

Publishing = Callable[[iris.Node], Awaitable[None]]


def publishing(*events: tuple[str, object]) -> Publishing:
    """Publish these events when somebody listens, in this order."""

    async def publish(node: iris.Node) -> None:
        for topic, payload in events:
            await publish_when_heard(node, topic, payload)

    return publish


# -- sub ----------------------------------------------------------------------------------------------------


def test_events_are_lines_with_their_topic_and_it_ends_after_the_count(desk: Desk) -> None:
    events: list[tuple[str, object]] = [("a.b", "text"), ("a.c", b"bytes"), ("a.b", b"\xff"), ("a.b", [1, None])]
    desk.company = publishing(*events)
    done = desk.run("sub", "a.*", "--count", "4")
    assert done.status == 0
    assert done.out == b"a.b text\na.c bytes\na.b base64:/w==\na.b [1, null]\n"
    assert done.err == "iris: subscribed to a.*\n"


def test_scripts_get_the_sender_too_and_headers_if_there_are_any(desk: Desk) -> None:
    senders: list[str] = []

    async def publish(node: iris.Node) -> None:
        senders.append(node.id)
        await publish_when_heard(node, "a", {"id": 7}, headers={"h": "1"})
        await publish_when_heard(node, "a", b"\xff")

    desk.company = publish
    first, second = map(json.loads, desk.run("sub", "a", "--count", "2", "--json").out.splitlines())
    sender = {"cluster": "company", "node": senders[0]}
    assert first == {"topic": "a", "payload": {"id": 7}, "sender": sender, "missed": 0, "headers": {"h": "1"}}
    assert second == {"topic": "a", "payload": "/w==", "encoding": "base64", "sender": sender, "missed": 0}


def test_several_patterns_are_followed_at_once_and_counted_together(desk: Desk) -> None:
    desk.company = publishing(("a", 1), ("b.c", 2), ("a", 3))
    done = desk.run("sub", "a", "b.>", "--count", "3")
    assert sorted(done.out.splitlines()) == [b"a 1", b"a 3", b"b.c 2"]
    assert sorted(done.err.splitlines()) == ["iris: subscribed to a", "iris: subscribed to b.>"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_patterns_that_have_events_at_the_same_time_print_no_more_than_the_count(
    count: int, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Lines.write

    async def write_slowly(lines: Lines, line: str) -> None:
        await trio.sleep(0.02)  # the reader of a pipe takes its time, and both patterns have an event meanwhile
        await write(lines, line)

    monkeypatch.setattr(Lines, "write", write_slowly)
    desk.company = publishing(("a", 1), ("b", 2), ("a", 3), ("b", 4))
    done = desk.run("sub", "a", "b", "--count", str(count))
    assert done.status == 0
    assert len(done.out.splitlines()) == count


def test_subscribers_of_one_group_share_the_events(desk: Desk) -> None:
    taken: list[object] = []

    async def share(node: iris.Node) -> None:
        async with node.subscribe("a", group="g") as events, trio.open_nursery() as nursery:
            nursery.start_soon(publish_on, node)
            async for event in events:
                taken.append(event.payload)  # noqa: PERF401 - it never ends, and what came before counts

    async def publish_on(node: iris.Node) -> None:
        for number in itertools.count():
            await node.publish("a", number)
            await trio.sleep(0.001)

    desk.company = share
    done = desk.run("sub", "a", "--group", "g", "--count", "5")
    printed = [int(line.removeprefix(b"a ")) for line in done.out.splitlines()]
    assert len(printed) == 5
    assert not set(printed) & set(taken)


def test_losses_are_told_where_they_happened(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe = iris.Node.subscribe

    def subscribe_for_one(node: iris.Node, pattern: str, *, group: str | None = None) -> object:
        return subscribe(node, pattern, group=group, limits=iris.SubscriptionLimits(events=1))

    monkeypatch.setattr(iris.Node, "subscribe", subscribe_for_one)
    write, writing, flooded = Lines.write, trio.Event(), trio.Event()

    async def write_when_flooded(lines: Lines, line: str) -> None:
        writing.set()
        await flooded.wait()
        await write(lines, line)

    monkeypatch.setattr(Lines, "write", write_when_flooded)

    async def flood(node: iris.Node) -> None:
        await publish_when_heard(node, "a", 0)
        await writing.wait()
        for number in range(1, 100):
            await node.publish("a", number)
        await trio.testing.wait_all_tasks_blocked(0.01)
        flooded.set()

    desk.company = flood
    done = desk.run("sub", "a", "--count", "2", "--json")
    first, second = map(json.loads, done.out.splitlines())
    lost = second["payload"] - first["payload"] - 1
    assert lost > 0
    assert second["missed"] == lost
    assert f"iris: {lost} events were lost before this one\n" in done.err


# -- pub ----------------------------------------------------------------------------------------------------


class Ear:
    """A member's subscription to everything, for as long as the verb runs and until ``expected`` events have come."""

    def __init__(self, desk: Desk, expected: int) -> None:
        self.events: list[iris.Event] = []
        self._expected = expected
        desk.company = self._listen

    async def _listen(self, node: iris.Node) -> None:
        with trio.CancelScope(shield=True), trio.fail_after(60):
            async with node.subscribe(">") as events:
                while len(self.events) < self._expected:
                    self.events.append(await anext(events))

    @property
    def payloads(self) -> list[object]:
        return [event.payload for event in self.events]


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish only what somebody listens to: in a test, the subscriber starts at the same time."""
    publish = iris.Node.publish

    async def publish_heard(node: iris.Node, topic: str, payload: object, **options: object) -> None:
        while True:
            before = node.statistics().without_subscriber
            await publish(node, topic, payload, **options)  # type: ignore[arg-type]
            if node.statistics().without_subscriber == before:
                return
            await trio.sleep(0.001)

    monkeypatch.setattr(iris.Node, "publish", publish_heard)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        (["text"], "text"),
        ([], b""),
        (["-"], b"\x00from a pipe"),
        (['{"a": [1, null]}', "--json-payload"], {"a": [1, None]}),
        (["@file", "--json-payload"], [7]),
    ],
)
def test_one_event_is_published_with_its_headers(desk: Desk, arguments: list[str], payload: object) -> None:
    Path("file").write_bytes(b"[7]")
    ear = Ear(desk, 1)
    done = desk.run("pub", "a.b", *arguments, "--header", "h=1", given=b"\x00from a pipe")
    assert (done.status, done.out, done.err) == (0, b"", "")
    (event,) = ear.events
    assert (event.topic, event.payload, dict(event.headers)) == ("a.b", payload, {"h": "1"})


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize(
    ("given", "payloads"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo without end", ["one", "", "two without end"]),
        (b"Gr\xc3\xbc\xc3\x9fe\n\xff\xfe no text\n", ["Grüße", b"\xff\xfe no text"]),
        (b"@file\n-\n", ["@file", "-"]),
        (b"x" * 200_000 + b"\ny\n", ["x" * 200_000, "y"]),
    ],
)
def test_each_line_is_one_event_in_order(desk: Desk, given: bytes, payloads: list[object]) -> None:
    ear = Ear(desk, len(payloads))
    assert desk.run("pub", "a", "--lines", given=given).status == 0
    assert ear.payloads == payloads


@pytest.mark.usefixtures("_patient")
def test_what_stands_before_a_line_that_is_not_json_is_published(desk: Desk) -> None:
    ear = Ear(desk, 2)
    done = desk.run("pub", "a", "--lines", "--json-payload", given=b'1\n{"a":2}\n{\n4\n')
    assert done.status == 2
    assert done.complaint.startswith("the payload is not JSON: Expecting property name")
    assert ear.payloads == [1, {"a": 2}]


def test_without_lines_there_are_no_events(desk: Desk) -> None:
    assert desk.run("pub", "a", "--lines").status == 0


def test_every_option_of_an_event_is_that_of_the_node(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[tuple[object, ...]] = []

    async def publish(node: iris.Node, topic: str, payload: object, **options: object) -> None:
        published.append((topic, payload, options))

    monkeypatch.setattr(iris.Node, "publish", publish)
    monkeypatch.setattr(iris.Node, "publish_confirmed", publish)
    given = ["--confirm", "--key", "k", "--timeout", "30", "--header", "h=1"]
    assert desk.run("pub", "a").status == desk.run("pub", "b", "--lines", *given, given=b"x\n").status == 0
    plain = {"key": None, "headers": None}
    every = {"key": "k", "timeout": 30.0, "headers": {"h": "1"}}
    assert published == [("a", b"", plain), ("b", "x", every)]


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["pub", "a b", "x"], 2, "'a b' is not a topic: use tokens joined by dots"),
        (["pub", "a.*", "x"], 2, "'a.*' is not a topic"),
        (["pub", "", "x"], 2, "'' is not a topic"),
        (["pub", "a", "x", "--confirm"], 1, "there is no durable subscriber of 'a': start a bridge for it"),
        (["pub", "a", "@big"], 1, "payload of 1048577 bytes: the limit is 1048576 bytes"),
        (["pub", "a", "--lines", "-"], 2, "--lines reads the payloads from standard input: give no PAYLOAD"),
        (["pub", "a", "--timeout", "0"], 2, "'--timeout': 0.0 is not in the range x>0 (see iris pub --help)"),
        (["pub"], 2, "Missing argument 'TOPIC' (see iris pub --help)"),
        (["sub", "a..b"], 2, "'a..b' is not a topic pattern: use tokens joined by dots"),
        (["sub", ">.a"], 2, "'>.a' is not a topic pattern"),
        (["sub", "a", "--count", "0"], 2, "'--count': 0 is not in the range x>=1 (see iris sub --help)"),
        (["sub", "a", "--count", "many"], 2, "'--count': 'many' is not a valid integer range (see iris sub --help)"),
        (["sub", "a", "--group", "bad group"], 2, "'bad group' is not a group name"),
    ],
)
def test_what_cannot_be_published_or_followed_is_one_line(
    desk: Desk, arguments: list[str], status: int, complaint: str
) -> None:
    Path("big").write_bytes(bytes(1024 * 1024 + 1))
    done = desk.run(*arguments)
    assert complaint in done.complaint
    assert done.status == status
