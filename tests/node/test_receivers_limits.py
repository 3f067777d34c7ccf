"""Messages that a node refuses: beyond its own ``Config``, or with unreadable payloads.  They cost no link."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec.msgpack import Ext
from trio.testing import MockClock

import iris
from iris.cli import payload as payload_text
from iris.cli import terminal
from iris.cluster.mesh.peer import Peer
from iris.kernel import wire
from iris.kernel.wire import kinds
from iris.patterns.books import GROUP_EVENT
from iris.patterns.books.columns import Columns
from iris.spark_bridge.admin import value_of
from tests.support.federations import open_federation
from tests.support.messages import fields_of, raw
from tests.support.stages import IN_FLIGHT, Stage, open_stage

KIB = 1024
SMALL = iris.Config(max_payload=4 * KIB, max_headers=256)
LARGE = b"x" * 50 * KIB
MANY = {"name": "x" * 300}


def instead(payload: Any) -> Callable[[object, int], Any]:
    """Return what takes the place of the function that encodes payloads, at a sender that breaks the rules."""

    def encoded(value: object, limit: int) -> Any:
        return payload

    return encoded


MALFORMED: dict[str, Any] = {
    "no msgpack": Ext(1, b"\xc1"),
    "cut off": Ext(1, b"\x93\x01"),
    "surplus": Ext(1, b"\x01\x02"),
    "not utf-8": Ext(1, b"\xa2\xff\xfe"),
    "extension": Ext(1, b"\xd4\x05x"),
    "timestamp": Ext(1, b"\x91\xd6\xff\x00\x00\x00\x01"),
    "too deep": Ext(1, b"\x91" * 1025 + b"\xc0"),
    "keys": Ext(1, b"\x81\x01\x02"),
}
malformed = pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED.keys())


def make_store(heard: list[object] | None = None) -> iris.Service:
    store = iris.Service("store")

    @store.request
    async def give(request: iris.Request) -> object:
        return LARGE if request.payload == "large" else request.payload

    @store.broadcast
    async def hear(message: iris.Message) -> None:
        if heard is not None:
            heard.append(message.payload)

    @store.tunnel
    async def echo(tunnel: iris.Tunnel) -> None:
        async for payload in tunnel:
            await tunnel.send(payload)

    return store


@asynccontextmanager
async def open_small_store(heard: list[object] | None = None) -> AsyncIterator[tuple[Stage, iris.Node, iris.Node]]:
    """A member with small limits, and a node with the usual ones."""
    async with open_stage() as stage:
        stage.harmless = ("above max_", "with a malformed payload")
        member, shop = await stage.pair(make_store(heard), config=SMALL)
        yield stage, member, shop
        assert shop.statistics().links[member.id].lost == 0
        assert await shop.request("store", 1) == 1


def post(stage: Stage, sender: iris.Node, receiver: iris.Node, kind: type[wire.Message], *fields: Any) -> None:
    """Send a message as a program does that checks nothing."""
    stage.parts[sender.id].mesh.post(receiver.id, raw(kind, *fields), 64)


async def take(events: iris.Subscription, count: int = 1) -> list[iris.Event]:
    with trio.fail_after(30):
        return [await events.__anext__() for _ in range(count)]


# -- above the receiver's limits ----------------------------------------------------------------------------


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize(
    ("payload", "headers", "limit"),
    [(LARGE, None, "max_payload"), ([LARGE], None, "max_payload"), (b"", MANY, "max_headers")],
    ids=["bytes", "value", "headers"],
)
async def test_a_request_too_large_for_its_member_ends_in_an_error_that_names_the_limit(
    autojump_clock: MockClock, payload: object, headers: dict[str, str] | None, limit: str, idempotent: bool
) -> None:
    async with open_small_store() as (_, member, shop):
        began = trio.current_time()
        with pytest.raises(iris.PayloadTooLarge, match=rf"store.*node {member.id} takes at most .*Config\.{limit}"):
            await shop.request("store", payload, headers=headers, options=iris.RequestOptions(idempotent=idempotent))
        assert trio.current_time() - began < 1
        assert shop.statistics().requests.refused == 1
        assert member.statistics().refusals == {f"request above {limit}": 1}
        assert member.statistics().services["store"].received == 0


async def test_what_is_just_at_the_limits_is_taken(autojump_clock: MockClock) -> None:
    heard: list[object] = []
    at_limit = b"x" * SMALL.max_payload
    async with open_small_store(heard) as (_, member, shop):
        headers = {"name": "x" * (SMALL.max_headers - 4)}
        assert await shop.request("store", at_limit, headers=headers) == at_limit
        await shop.broadcast("store", at_limit, headers=headers)
        async with member.subscribe("a") as events:
            await shop.publish("a", at_limit, headers=headers)
            assert (await take(events))[0].payload == at_limit
        assert heard == [at_limit]
        assert member.statistics().refusals == {}


async def test_a_reply_too_large_for_its_caller_is_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        stage.harmless = ("above max_",)
        await stage.member(make_store())
        shop = await stage.node("shop", config=SMALL)
        await shop.wait_for("store")
        with pytest.raises(iris.RemoteError, match=r"51200 bytes.*at most 4096 \(its Config\.max_payload\)") as caught:
            await shop.request("store", "large")
        assert caught.value.code == "reply_too_large"
        assert shop.statistics().requests.lost == {"reply above max_payload": 1}
        assert shop.statistics().refusals == {"reply above max_payload": 1}
        async with shop.survey("store", "large") as answers:
            assert [answer async for answer in answers] == []
        assert [type(error) for error in answers.errors.values()] == [iris.RemoteError]


@pytest.mark.parametrize("config", [iris.Config(), iris.Config(relay_above=1, relay_fan_out=2)], ids=["direct", "tree"])
async def test_a_survey_too_large_for_one_member_is_answered_by_the_others(
    autojump_clock: MockClock, config: iris.Config
) -> None:
    async with open_stage() as stage:
        stage.harmless = ("above max_",)
        small = await stage.member(make_store(), "small", config=SMALL)
        for number in range(3):
            await stage.member(make_store(), f"other-{number}", config=config)
        shop = await stage.node("shop", config=config)
        await shop.wait_for("store", members=4)
        async with shop.survey("store", LARGE) as answers:
            assert len([answer async for answer in answers]) == 3
        assert list(answers.errors) == [small.id]
        assert isinstance(answers.errors[small.id], iris.PayloadTooLarge)


@pytest.mark.parametrize("config", [iris.Config(), iris.Config(relay_above=1, relay_fan_out=2)], ids=["direct", "tree"])
async def test_a_broadcast_too_large_for_one_member_is_refused_there_and_heard_by_the_others(
    autojump_clock: MockClock, config: iris.Config
) -> None:
    heard: list[object] = []
    async with open_stage() as stage:
        stage.harmless = ("above max_",)
        small = await stage.member(make_store([]), "small", config=SMALL)
        for number in range(3):
            await stage.member(make_store(heard), f"other-{number}", config=config)
        shop = await stage.node("shop", config=config)
        await shop.wait_for("store", members=4)
        for _ in range(200):
            await shop.broadcast("store", LARGE)
        await trio.sleep(IN_FLIGHT)
        assert heard == [LARGE] * 600
        assert small.statistics().refusals == {"broadcast above max_payload": 200}
        assert small.statistics().services["store"].broadcasts_refused == 200
        assert shop.statistics().broadcasts.refused_because == {"refused by the member": 200}


async def test_events_too_large_for_a_subscriber_are_refused_told_to_the_publisher_and_missed(
    autojump_clock: MockClock,
) -> None:
    async with open_small_store() as (_, member, shop), member.subscribe("a") as events:
        for payload in (b"1", LARGE, LARGE, b"2", [LARGE], {"n": 3}, b"4"):
            await shop.publish("a", payload)
        await shop.publish("a", b"5", headers=MANY)
        await shop.publish("a", b"6")
        taken = await take(events, 5)
        assert [(event.payload, event.missed) for event in taken] == [
            (b"1", 0), (b"2", 2), ({"n": 3}, 1), (b"4", 0), (b"6", 1),
        ]  # fmt: skip
        await trio.sleep(IN_FLIGHT)
        assert member.statistics().refusals == {"event above max_payload": 3, "event above max_headers": 1}
        assert shop.statistics().publishing.refused == 4


async def test_of_a_run_of_events_those_that_fit_are_taken(autojump_clock: MockClock) -> None:
    async with open_small_store() as (stage, member, shop), member.subscribe("a") as events:
        payloads = (LARGE, b"1", b"2" * 3 * KIB, LARGE, b"3" * 3 * KIB)
        post(stage, shop, member, kinds.Events, "a", 1, 0, None, None, None, payloads, (0,))
        taken = await take(events, 3)
        assert [(event.payload[:1], event.missed) for event in taken] == [(b"1", 1), (b"2", 0), (b"3", 1)]


async def test_an_event_above_the_limit_of_who_confirms_it_fails_and_says_why(autojump_clock: MockClock) -> None:
    async with open_small_store() as (_, member, shop), member.subscribe_durable("a"):
        with pytest.raises(iris.RequestTimeout, match=rf"{member.id}.*at most 4096 \(its Config\.max_payload\)"):
            await shop.publish_confirmed("a", LARGE, timeout=2)


async def test_last_values_above_the_limit_do_not_arrive_and_others_do(autojump_clock: MockClock) -> None:
    async with open_small_store() as (_, member, shop):
        await shop.retain("a.large", LARGE)
        await shop.retain("a.small", b"small")
        async with member.subscribe("a.*") as events:
            (event,) = await take(events)
            assert (event.payload, event.retained) == (b"small", True)
        assert member.statistics().refusals == {"event above max_payload": 1}


async def test_events_above_the_limit_are_refused_in_groups_and_over_trees_too(autojump_clock: MockClock) -> None:
    tree = iris.Config(relay_above=2, relay_fan_out=2)
    async with open_stage() as stage:
        stage.harmless = ("above max_",)
        shop = await stage.node("shop", config=tree)
        small = [
            await stage.node(f"small-{number}", config=iris.Config(max_payload=4 * KIB, relay_above=2, relay_fan_out=2))
            for number in range(5)
        ]
        async with trio.open_nursery() as nursery:
            heard: list[object] = []

            def hear(event: iris.Event) -> None:
                heard.append(event.payload)

            async def listen(node: iris.Node, group: str | None, task_status: trio.TaskStatus[None]) -> None:
                async with node.subscribe("a", group=group) as events:
                    task_status.started()
                    async for event in events:
                        hear(event)

            for node in small:
                await nursery.start(listen, node, None)
            await nursery.start(listen, small[0], "workers")
            for payload in (LARGE, b"small"):
                await shop.publish("a", payload)
            await trio.sleep(2)
            assert heard == [b"small"] * 6
            nursery.cancel_scope.cancel()
        assert [node.statistics().refusals["event above max_payload"] for node in small] == [2, 1, 1, 1, 1]


async def test_a_node_holds_its_own_messages_against_its_limits_before_it_sends_them(autojump_clock: MockClock) -> None:
    async with open_small_store() as (_, member, _):
        with pytest.raises(iris.PayloadTooLarge):
            await member.request("store", LARGE)
        with pytest.raises(iris.PayloadTooLarge):
            await member.publish("a", LARGE)


async def test_a_tunnel_takes_messages_up_to_the_smaller_limit_and_headers_up_to_the_members(
    autojump_clock: MockClock,
) -> None:
    async with open_small_store() as (_, member, shop):
        with pytest.raises(iris.PayloadTooLarge, match=rf"store.*node {member.id} .*Config\.max_headers"):
            async with shop.open_tunnel("store", headers=MANY):
                raise AssertionError("it must not open")
        assert member.statistics().refusals == {"tunnel above max_headers": 1}
        async with shop.open_tunnel("store") as tunnel:
            with pytest.raises(iris.PayloadTooLarge, match="4096"):
                await tunnel.send(LARGE)
            await tunnel.send(b"small")
            assert await tunnel.receive() == b"small"


async def test_between_sites_the_limits_of_the_receiver_hold_as_well(autojump_clock: MockClock) -> None:
    heard: list[object] = []
    async with open_federation() as federation:
        await federation.gateway("eu")
        await federation.gateway("us", to=["eu-gateway"])
        member = await federation.member("eu", make_store(heard), config=SMALL)
        shop = await federation.shop("us", "store")
        with pytest.raises(iris.PayloadTooLarge, match=rf"{member.id} takes at most 4096"):
            await shop.request("store", LARGE)
        async with member.subscribe("a") as events:
            await trio.sleep(1)
            await shop.broadcast("store", LARGE)
            await shop.broadcast("store", b"small")
            await shop.publish("a", LARGE)
            await shop.publish("a", b"small")
            assert (await take(events))[0].payload == b"small"
        assert heard == [b"small"]
        refusals = member.statistics().refusals
        assert [refusals[f"{kind} above max_payload"] for kind in ("request", "broadcast", "event")] == [1, 1, 1]


# -- payloads that cannot be read ---------------------------------------------------------------------------


@malformed
async def test_a_malformed_event_is_counted_and_the_next_one_is_delivered(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, payload: Any
) -> None:
    caplog.set_level(logging.WARNING, "iris")
    async with open_small_store() as (stage, member, shop), member.subscribe("a") as events:
        post(stage, shop, member, kinds.Events, "a", 1, 0, None, None, None, (b"1", payload, b"2", payload), (0,))
        post(stage, shop, member, kinds.Events, "a", 5, 0, None, None, None, (payload,), (0,))
        post(stage, shop, member, kinds.Events, "a", 6, 0, None, None, None, (b"3",), (0,))
        taken = await take(events, 3)
        assert [(event.payload, event.missed) for event in taken] == [(b"1", 0), (b"2", 1), (b"3", 2)]
        statistics = events.statistics()
        assert (statistics.received, statistics.delivered, statistics.malformed) == (6, 3, 3)
        assert member.statistics().refusals == {"event with a malformed payload": 3}
        (record,) = caplog.records
        for part in ("event", "'a'", "'shop'", shop.id):
            assert part in record.getMessage()


@malformed
async def test_malformed_events_are_left_out_of_batches(autojump_clock: MockClock, payload: Any) -> None:
    async with open_small_store() as (stage, member, shop), member.subscribe("a") as events:
        post(stage, shop, member, kinds.Events, "a", 1, 0, None, None, None, (payload,) * 5, (0,))
        post(stage, shop, member, kinds.Events, "a", 6, 0, None, None, None, (b"1", payload, b"2"), (0,))
        assert [event.payload for event in await events.receive_batch()] == [b"1", b"2"]
        assert events.statistics().waiting == 0


async def test_a_member_of_a_group_owes_nothing_for_what_it_does_not_take(autojump_clock: MockClock) -> None:
    async with open_small_store() as (stage, member, shop):
        async with member.subscribe("a", group="workers") as events:
            payloads = (b"1", MALFORMED["no msgpack"], LARGE, b"2", MALFORMED["keys"])
            post(stage, shop, member, kinds.Events, "a", 1, 0, "workers", None, None, payloads, (0,))
            post(stage, shop, member, kinds.Events, "a", 6, 0, "workers", None, None, (b"3",), (0,))
            assert [event.payload for event in await take(events, 3)] == [b"1", b"2", b"3"]
        assert [event async for event in events] == []
        assert events._settling == {}
        statistics = events.statistics()
        assert (statistics.delivered, statistics.malformed, statistics.waiting) == (3, 2, 0)
        account = stage.parts[member.id].patterns.books.account(shop.id, GROUP_EVENT, "a")
        assert account.columns() == Columns(arrived=6, received=3, refused=3)


async def test_the_publisher_of_a_malformed_event_that_is_to_be_confirmed_is_told(autojump_clock: MockClock) -> None:
    async with open_small_store() as (stage, member, shop), member.subscribe_durable("a") as events:
        told: list[Any] = []

        def receive(peer: Peer, message: wire.Message) -> None:
            told.append(fields_of(message)[0])

        stage.parts[shop.id].mesh.receivers.own[kinds.ConfirmDelayed] = receive
        post(stage, shop, member, kinds.Events, "a", 1, 1, None, None, None, (MALFORMED["no msgpack"], b"1"), (0,))
        assert (await take(events))[0].payload == b"1"
        await trio.sleep(IN_FLIGHT)
        assert len(told) == 1
        assert "cannot be read" in told[0]


@malformed
async def test_a_malformed_last_value_is_passed_over(autojump_clock: MockClock, payload: Any) -> None:
    async with open_small_store() as (stage, member, shop), member.subscribe("a") as events:
        post(stage, shop, member, kinds.Retained, "a", 1, 1, None, None, payload, (0,))
        post(stage, shop, member, kinds.Events, "a", 2, 0, None, None, None, (b"1",), (0,))
        assert (await take(events))[0].payload == b"1"


@malformed
async def test_a_malformed_request_is_answered_with_an_error(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, payload: Any
) -> None:
    async with open_small_store() as (_, member, shop):
        with monkeypatch.context() as patched:
            patched.setattr("iris.patterns.request.requests.encoded", instead(payload))
            with pytest.raises(iris.RemoteError, match="malformed payload") as caught:
                await shop.request("store", None)
        assert caught.value.code == "bad_request"
        assert member.statistics().refusals == {"request with a malformed payload": 1}
        assert member.statistics().services["store"].failed == 1


@malformed
async def test_a_malformed_reply_is_an_error_of_this_request_and_an_answer_that_failed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, payload: Any
) -> None:
    async with open_small_store() as (_, member, shop):
        with monkeypatch.context() as patched:
            patched.setattr("iris.patterns.service.worker_pool.encoded", instead(payload))
            with pytest.raises(iris.RemoteError, match=rf"{member.id} of cluster 'store'.*malformed payload") as caught:
                await shop.request("store", None)
            assert caught.value.code == "reply_malformed"
            async with shop.survey("store", None) as answers:
                assert [answer async for answer in answers] == []
            assert [type(error) for error in answers.errors.values()] == [iris.RemoteError]
        assert shop.statistics().refusals == {"reply with a malformed payload": 2}
        assert shop.statistics().requests.lost == {"malformed reply": 2}


@malformed
async def test_a_malformed_broadcast_is_refused_and_the_next_one_is_heard(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, payload: Any
) -> None:
    heard: list[object] = []
    async with open_small_store(heard) as (_, member, shop):
        with monkeypatch.context() as patched:
            patched.setattr("iris.patterns.multicast.broadcast.encoded", instead(payload))
            for _ in range(2000):
                await shop.broadcast("store", None)
        await shop.broadcast("store", "after")
        await trio.sleep(IN_FLIGHT)
        assert heard == ["after"]
        assert member.statistics().refusals == {"broadcast with a malformed payload": 2000}
        assert shop.statistics().broadcasts.refused_because == {"refused by the member": 2000}


async def test_broadcasts_that_wait_are_not_decoded_until_it_is_their_turn(autojump_clock: MockClock) -> None:
    """A payload of empty lists takes many times its bytes as a value."""
    heard: list[object] = []
    empty: list[list[object]] = [[], []]
    gate = trio.Event()
    store = iris.Service("store")

    @store.broadcast
    async def hear(message: iris.Message) -> None:
        await gate.wait()
        heard.append(message.payload)

    async with open_stage() as stage:
        member, shop = await stage.pair(store)
        for _ in range(3):
            await shop.broadcast("store", empty)
        await trio.sleep(IN_FLIGHT)
        (turn,) = stage.parts[member.id].patterns.serving.memberships["store"].broadcasts._turns
        assert [type(message.payload) for message, _ in turn.waiting] == [Ext] * 3
        gate.set()
        await trio.sleep(IN_FLIGHT)
        assert heard == [empty] * 3


async def test_a_malformed_message_of_a_tunnel_ends_that_tunnel_with_one_error_and_no_other(
    autojump_clock: MockClock,
) -> None:
    async with open_small_store() as (_, member, shop), shop.open_tunnel("store") as other:

        async def send_malformed() -> None:
            async with shop.open_tunnel("store") as tunnel:
                await tunnel._send_encoded(b"\xc1", packed=True)
                await tunnel.receive()

        with pytest.raises(iris.TunnelBroken, match="malformed payload"):
            await send_malformed()
        await other.send("still")
        assert await other.receive() == "still"
        assert member.statistics().services["store"].tunnels_failed == 1


def test_what_another_program_nests_as_deep_as_can_be_read_does_not_end_a_command() -> None:
    for packed in (b"\x91" * 1024, b"\x81\xa1a" * 1024, b"\xcb\x7f\xf8" + bytes(6), b"\x92\xc4\x01\xff\xa1x"):
        payload = wire.decode_payload_untrusted(Ext(1, packed + b"\xc0" * (packed[0] < 0x92)))
        assert payload_text.as_text(payload)
        assert json.loads(terminal._as_json(payload_text.as_fields(payload)))
        assert value_of(packed + b"\xc0" * (packed[0] < 0x92), packed=True)
