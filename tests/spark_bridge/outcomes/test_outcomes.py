"""Requests with an idempotency key: one outcome, at whichever member, also after the death of members and bridge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

import iris
from iris.node.calls import Calls
from iris.node.operators import gather_reports
from iris.patterns.bridge_protocol import Ask
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, Rights, open_network
from tests.support.waiting import wait_until

R = TypeVar("R")


@asynccontextmanager
async def open_keeper(network: Network, directory: Path, **options: Any) -> AsyncIterator[iris.Node]:
    async with (
        network.open_node(options.get("name", "bridge")) as node,
        open_bridge(node, topics=["t.>"], directory=directory, **options),
    ):
        yield node


def bank(ran: list[Any], **options: Any) -> iris.Service:
    service = iris.Service("bank", outcomes=iris.Outcomes(**options))

    @service.request
    async def pay(request: iris.Request) -> object:
        ran.append((request.payload, request.attempt, request.idempotency_key))
        if request.payload == "poor":
            raise iris.RemoteError("no_money", "none is left")
        return f"{len(ran)}: {request.payload}"

    return service


async def test_a_key_has_one_outcome_at_all_members(tmp_path: Path) -> None:
    ran: list[Any] = []
    async with (
        open_network() as network,
        open_keeper(network, tmp_path) as bridge,
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
    ):
        async with one.join("bank", bank(ran)):
            await desk.wait_for("bank")
            assert await desk.request("bank", "ten", options=iris.RequestOptions(idempotency_key="k")) == "1: ten"
            for _ in range(2):
                with pytest.raises(iris.RemoteError, match="none is left"):
                    await desk.request("bank", "poor", options=iris.RequestOptions(idempotency_key="l"))
        async with network.open_node("bank") as two, two.join("bank", bank(ran)) as joined:
            await desk.wait_for("bank")
            assert await desk.request("bank", "ten", options=iris.RequestOptions(idempotency_key="k")) == "1: ten"
            with pytest.raises(iris.RemoteError, match="none is left"):
                await desk.request("bank", "poor", options=iris.RequestOptions(idempotency_key="l"))
            with pytest.raises(iris.RemoteError, match="idempotency key 'k' stands for another payload") as refused:
                await desk.request("bank", "eleven", options=iris.RequestOptions(idempotency_key="k"))
            assert refused.value.code == "key_reused"
            assert joined.statistics().replayed == 2
        assert ran == [("ten", 1, "k"), ("poor", 1, "l")]
        statistics = (await gather_reports(bridge))["outcomes"]
        assert (statistics.keys, statistics.claimed, statistics.replayed, statistics.reused) == (2, 2, 3, 1)


@pytest.fixture(autouse=True)
def _bridge_has_met_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.spark_bridge.outcomes.keeper._MEETING", 0.0)


def dying(monkeypatch: pytest.MonkeyPatch, network: Network, asking: Calls, host: str, step: str) -> None:
    """Have a member be cut off at a step of the protocol."""
    original = Calls.ask

    async def ask(calls: Calls, bridge: str, request: Ask[R], within: float, /) -> R:
        if calls is not asking:
            return await original(calls, bridge, request, within)
        operation = request.operation
        if operation == {"claim": "key.claim", "ran": "key.record"}.get(step):
            network.memory.crash(host)
        answer = await original(calls, bridge, request, within)
        if operation == {"granted": "key.claim", "recorded": "key.record"}.get(step):
            network.memory.crash(host)
        return answer

    monkeypatch.setattr(Calls, "ask", ask)


@pytest.mark.parametrize("rerun", [False, True])
@pytest.mark.parametrize("step", ["claim", "granted", "ran", "recorded"])
async def test_a_member_that_dies_at_each_step(
    tmp_path: Path, step: str, rerun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    async with (
        open_network() as network,
        open_keeper(network, tmp_path),
        network.open_node("desk") as desk,
        network.open_parts("bank", host="one", config=iris.Config(drain_timeout=0.1)) as (one, parts),
        network.open_node("bank") as two,
    ):
        dying(monkeypatch, network, parts.patterns.calls, "one", step)
        async with one.join("bank", bank(ran, rerun=rerun)):
            await desk.wait_for("bank")
            async with two.join("bank", bank(ran, rerun=rerun)):
                await desk.wait_for("bank", 2)
                reply: object
                try:
                    reply = await desk.request(
                        "bank", "ten", timeout=20, options=iris.RequestOptions(idempotency_key="k", prefer=one.id)
                    )
                except iris.Unknown as error:
                    reply = "unknown" if "in the middle of a request with an idempotency key" in str(error) else error
                attempts = [attempt for _, attempt, _ in ran]
                match step, rerun:
                    # The one that is cut off may have run what it was granted: it is no process that has died.
                    case "claim", _:
                        assert (reply, attempts) == ("1: ten", [1])
                    case (("granted" | "ran"), False):
                        assert (reply, attempts) == ("unknown", [1])
                    case (("granted" | "ran"), True):
                        assert (reply, attempts) == ("2: ten", [1, 2])
                    case _:
                        assert (reply, attempts) == ("1: ten", [1])
                count = len(ran)
                for _ in range(2):
                    if reply == "unknown":
                        with pytest.raises(iris.Unknown):
                            await desk.request("bank", "ten", options=iris.RequestOptions(idempotency_key="k"))
                    else:
                        assert (
                            await desk.request("bank", "ten", options=iris.RequestOptions(idempotency_key="k")) == reply
                        )
                assert len(ran) == count


def slow(ran: list[str], name: str, seconds: float = 0.3) -> iris.Service:
    service = iris.Service("bank", outcomes=iris.Outcomes())

    @service.request
    async def pay(_: iris.Request) -> str:
        ran.append(name)
        await trio.sleep(seconds)
        return name

    return service


async def test_the_same_key_at_two_members_at_once_runs_once(tmp_path: Path) -> None:
    ran: list[str] = []
    replies: list[object] = []
    async with (
        open_network() as network,
        open_keeper(network, tmp_path),
        network.open_node("desk") as desk,
        network.open_node("desk") as other_desk,
        network.open_node("shop") as shop,
        network.open_node("bank") as one,
        network.open_node("bank") as two,
        one.join("bank", slow(ran, "one")),
        two.join("bank", slow(ran, "two")),
    ):

        async def ask(node: iris.Node, member: iris.Node) -> None:
            await node.wait_for("bank", 2)
            replies.append(
                await node.request("bank", options=iris.RequestOptions(idempotency_key="k", prefer=member.id))
            )

        async with trio.open_nursery() as nursery:
            for node in (desk, other_desk):
                for member in (one, two):
                    nursery.start_soon(ask, node, member)
        assert len(ran) == 1
        assert replies == ran * 4
        await ask(shop, one)
        assert len(ran) == 2, "the key of another cluster is another key"


async def test_what_was_cancelled_in_the_middle_is_in_doubt_and_what_was_not_begun_is_not(tmp_path: Path) -> None:
    ran: list[str] = []
    async with (
        open_network() as network,
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
        one.join("bank", slow(ran, "one", 60)),
    ):
        async with open_keeper(network, tmp_path) as bridge:
            await desk.wait_for("bank")
            await one.wait_for("bridge")
            with trio.move_on_after(0.5):
                await desk.request("bank", options=iris.RequestOptions(idempotency_key="k"))
            with pytest.raises(iris.Unknown, match="in the middle"):
                await desk.request("bank", options=iris.RequestOptions(idempotency_key="k"))
            with pytest.raises(iris.RequestTimeout):
                await desk.request("bank", timeout=0.5, options=iris.RequestOptions(idempotency_key="l"))
            with pytest.raises(iris.Unknown, match="in the middle"):
                await desk.request("bank", options=iris.RequestOptions(idempotency_key="l"))
            assert ran == ["one", "one"]
            assert (await gather_reports(bridge))["outcomes"].doubtful == 2
        with pytest.raises(iris.RequestTimeout):
            await desk.request("bank", timeout=0.5, options=iris.RequestOptions(idempotency_key="m"))
        assert len(ran) == 2


async def test_a_bridge_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """It dies while the handler runs; the reply comes when the outcome is recorded."""
    service = iris.Service("bank", outcomes=iris.Outcomes())
    begun, go_on = trio.Event(), trio.Event()
    replies: list[object] = []

    @service.request
    async def pay(_: iris.Request) -> str:
        begun.set()
        await go_on.wait()
        return "paid"

    async with (
        open_network() as network,
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
        one.join("bank", service),
    ):

        async def ask() -> None:
            replies.append(await desk.request("bank", timeout=30, options=iris.RequestOptions(idempotency_key="k")))

        async with trio.open_nursery() as nursery:
            async with open_keeper(network, tmp_path):
                await desk.wait_for("bank")
                await one.wait_for("bridge")
                nursery.start_soon(ask)
                await begun.wait()
            go_on.set()
            await trio.sleep(0.2)
            assert replies == []
            async with open_keeper(network, tmp_path) as bridge:
                await wait_until(lambda: replies)
                assert await desk.request("bank", options=iris.RequestOptions(idempotency_key="k")) == "paid"
                assert (await gather_reports(bridge))["outcomes"].recorded == 1
    assert replies == ["paid"]


async def test_a_service_without_outcomes_and_one_without_a_bridge_refuse_keys(tmp_path: Path) -> None:
    ran: list[Any] = []
    plain = iris.Service("plain")

    @plain.request
    async def serve(_: iris.Request) -> None:
        ran.append("plain")

    async with (
        open_network() as network,
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
        one.join("plain", plain) as joined,
        one.join("bank", bank(ran)),
        one.join("lost", bank(ran, bridge="plain")),
    ):
        await desk.wait_for("lost")
        with pytest.raises(iris.RemoteError, match=r"keeps no outcomes, .*outcomes=iris\.Outcomes") as refused:
            await desk.request("plain", options=iris.RequestOptions(idempotency_key="k"))
        assert refused.value.code == "no_outcomes"
        assert joined.statistics().refused == 1
        with pytest.raises(iris.RemoteError, match=r"needs a bridge, so the request did not run: .*--name bridge"):
            await desk.request("bank", options=iris.RequestOptions(idempotency_key="k"))
        with pytest.raises(iris.RemoteError, match="'plain' is no bridge"):
            await desk.request("lost", options=iris.RequestOptions(idempotency_key="k"))
        assert await desk.request("plain", headers={"idempotency-key": "k"}) is None, "a header of the program's own"
    assert ran == ["plain"]


async def test_a_reply_that_is_too_large_to_keep_is_the_same_error_each_time(tmp_path: Path) -> None:
    service = iris.Service("bank", outcomes=iris.Outcomes())
    ran: list[int] = []

    @service.request
    async def pay(request: iris.Request) -> bytes:
        ran.append(request.payload)
        return bytes(request.payload)

    async with (
        open_network() as network,
        open_keeper(network, tmp_path),
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
        one.join("bank", service),
    ):
        await desk.wait_for("bank")
        assert len(await desk.request("bank", 262144, options=iris.RequestOptions(idempotency_key="k"))) == 262144
        for _ in range(2):
            with pytest.raises(iris.RemoteError, match="the handler ran, and its reply of 262145 bytes") as error:
                await desk.request("bank", 262145, options=iris.RequestOptions(idempotency_key="l"))
            assert error.value.code == "reply_too_large_to_keep"
    assert ran == [262144, 262145]


async def test_only_members_name_the_keys_of_a_cluster_and_claims_are_checked(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_keeper(network, tmp_path),
        network.open_node("thief") as thief,
        network.open_node("bank") as one,
        one.join("bank", bank([])),
    ):
        await thief.wait_for("bank")
        await thief.wait_for("bridge")
        named = {"cluster": "bank", "caller": "desk", "operation": None, "key": "k"}
        holder = {**named, "holder": bytes(16)}
        claim: dict[str, Any] = {
            **holder, "fingerprint": bytes(16), "budget": 1.0, "keep": 60.0, "rerun": False, "wait": 0.0,
        }  # fmt: skip
        record = {**claim, "attempt": 1, "outcome": b"b"}
        release = {**holder, "begun": True}
        note = {**holder, "notes": b"n"}
        asked = {"key.claim": claim, "key.note": note, "key.record": record, "key.release": release}
        for operation, fields in asked.items():
            with pytest.raises(iris.RemoteError, match="asks for a key of 'bank', and is no member") as refused:
                await thief.request("bridge", fields, operation=operation)
            assert refused.value.code == "NotAllowed"
        wrong: list[dict[str, Any]] = [
            {"holder": b"x"}, {"holder": "x"}, {"key": ""}, {"key": "x" * 257}, {"key": 5}, {"operation": 5},
            {"caller": None}, {"cluster": []},
        ]  # fmt: skip
        of_claims: list[dict[str, Any]] = [
            {"fingerprint": None}, {"budget": -1}, {"budget": True}, {"keep": 0.5}, {"keep": 1e9}, {"rerun": 1},
            {"wait": 99}, {"undoes": 5}, {"undoes": {}}, {"undoes": {"operation": None, "key": "k"}},
        ]  # fmt: skip
        payload: Any
        for payload in (7, None, {}, *({**claim, **change} for change in (*wrong, *of_claims))):
            with pytest.raises(iris.RemoteError, match="bad_request"):
                await one.request("bridge", payload, operation="key.claim")
        for payload in (7, *({**record, **change} for change in ({"outcome": 5}, {"attempt": 0}, *wrong))):
            with pytest.raises(iris.RemoteError, match="bad_request"):
                await one.request("bridge", payload, operation="key.record")
        for payload in (7, *({**release, **change} for change in ({"begun": None}, *wrong))):
            with pytest.raises(iris.RemoteError, match="bad_request"):
                await one.request("bridge", payload, operation="key.release")
        of_notes: list[dict[str, Any]] = [{"notes": 5}, {"notes": bytes(2**19)}]
        for payload in (7, *({**note, **change} for change in (*wrong, *of_notes))):
            with pytest.raises(iris.RemoteError, match="bad_request"):
                await one.request("bridge", payload, operation="key.note")
        assert await one.request("bridge", note, operation="key.note") == {"counts": False}, "nobody has claimed it"
        assert await one.request("bridge", claim, operation="key.claim") == {"attempt": 1}, "nothing was changed"
        assert await one.request("bridge", note, operation="key.note") == {"counts": True}
        assert await one.request("bridge", claim, operation="key.claim") == {"attempt": 1, "notes": b"n"}
        other: dict[str, Any] = {"cluster": "thief", "caller": "thief", "operation": "do", "key": "l"}
        undo = {**claim, "key": "l/undo", "undoes": other}
        assert await one.request("bridge", undo, operation="key.claim") == {"attempt": 1, "undone": None}
        theirs = {**claim, **other}
        assert await thief.request("bridge", theirs, operation="key.claim") == {"attempt": 1}, "it closes no others'"
        with pytest.raises(iris.RemoteError, match="key_closed"):
            await one.request("bridge", {**claim, "operation": "do", "key": "l"}, operation="key.claim")


async def test_the_member_with_shard_0_keeps_them_and_the_others_say_so(tmp_path: Path) -> None:
    ran: list[Any] = []
    async with (
        open_network() as network,
        open_keeper(network, tmp_path / "0", shards=[0], of=2),
        open_keeper(network, tmp_path / "1", shards=[1], of=2),
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
        one.join("bank", bank(ran)),
    ):
        await desk.wait_for("bank")
        await one.wait_for("bridge", 2)
        for number in range(16):
            for _ in range(2):
                assert (
                    await desk.request("bank", number, options=iris.RequestOptions(idempotency_key=str(number)))
                    == f"{number + 1}: {number}"
                )


@pytest.mark.parametrize(
    "options", [{"bridge": "no name"}, {"keep": 0.5}, {"keep": 1e9}, {"keep": True}, {"keep": "x"}, {"rerun": 1}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(iris.ConfigError):
        iris.Outcomes(**options)


def test_a_service_takes_outcomes_and_nothing_else() -> None:
    wrong: Any = 60
    with pytest.raises(iris.ConfigError, match=r"outcomes is 60: use iris\.Outcomes\(\.\.\.\)"):
        iris.Service("bank", outcomes=wrong)


def ledger(**options: Any) -> iris.Service:
    """Its effect is what it publishes."""
    service = iris.Service("bank", outcomes=iris.Outcomes(**options))

    @service.request
    async def pay(request: iris.Request) -> str:
        assert request.outbox is not None
        request.outbox.publish("ledger.ann", {"amount": -request.payload}, key="ann")
        request.outbox.publish("ledger.ben", b"%d" % request.payload, headers={"attempt": str(request.attempt)})
        if request.payload > 100:
            raise iris.RemoteError("no_money", "none is left")
        return "paid"

    return service


async def stored(node: iris.Node, count: int) -> list[Any]:
    """Return the events of the log: so many, and no more follow."""
    found: list[Any] = []
    async with node.bridge().consume("ledger.>", group=f"readers-{count}-{trio.current_time()}") as events:
        with trio.move_on_after(20):
            while len(found) < count:
                found += await anext(events)
        with trio.move_on_after(0.3):
            found += await anext(events)
    return [(event.topic, event.key, event.payload, event.sender) for event in found]


PAID = [("ledger.ann", "ann", {"amount": -30}, "bank"), ("ledger.ben", None, b"30", "bank")]


async def test_events_of_an_outbox_are_stored_with_the_outcome_once_or_not_at_all(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_keeper(network, tmp_path),
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
        one.join("bank", ledger()),
    ):
        await desk.wait_for("bank")
        for _ in range(2):
            assert await desk.request("bank", 30, options=iris.RequestOptions(idempotency_key="k")) == "paid"
        with pytest.raises(iris.RemoteError, match="none is left"):
            await desk.request("bank", 300, options=iris.RequestOptions(idempotency_key="l"))
        assert await stored(desk, 2) == PAID


@pytest.mark.parametrize("step", ["granted", "ran", "recorded"])
async def test_of_a_member_that_dies_nothing_is_stored_twice(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_network() as network,
        open_keeper(network, tmp_path),
        network.open_node("desk") as desk,
        network.open_parts("bank", host="one", config=iris.Config(drain_timeout=0.1)) as (one, parts),
        network.open_node("bank") as two,
    ):
        dying(monkeypatch, network, parts.patterns.calls, "one", step)
        async with one.join("bank", ledger(rerun=True)), two.join("bank", ledger(rerun=True)):
            await desk.wait_for("bank", 2)
            assert (
                await desk.request(
                    "bank", 30, timeout=20, options=iris.RequestOptions(idempotency_key="k", prefer=one.id)
                )
                == "paid"
            )
            assert await stored(desk, 2) == PAID


async def test_an_outbox_is_bounded_and_a_bridge_refuses_what_may_not_be_published(tmp_path: Path) -> None:
    service = iris.Service("bank", outcomes=iris.Outcomes())
    other = iris.Service("divided", outcomes=iris.Outcomes(bridge="divided-bridge"))

    @other.request
    @service.request
    async def pay(request: iris.Request) -> None:
        assert request.outbox is not None
        with pytest.raises(iris.ConfigError, match="use tokens joined by dots"):
            request.outbox.publish("ledger.>", b"")
        with pytest.raises(iris.LocalProtocolError):
            request.outbox.publish("ledger.a", object())
        request.outbox.publish(request.payload, bytes(200_000))
        with pytest.raises(iris.PayloadTooLarge, match="64 events of 262144 bytes together"):
            request.outbox.publish("ledger.a", bytes(100_000))
        for _ in range(63):
            request.outbox.publish(request.payload, b"")
        with pytest.raises(iris.PayloadTooLarge, match="64 events"):
            request.outbox.publish("ledger.a", b"")

    rights = Rights(serves=(">",), publishes=("ledger.>",))
    async with (
        open_network(rights=rights) as network,
        open_keeper(network, tmp_path / "0"),
        open_keeper(network, tmp_path / "1", name="divided-bridge", of=2),
        network.open_node("desk") as desk,
        network.open_node("bank") as one,
        one.join("bank", service),
        one.join("divided", other),
    ):
        await desk.wait_for("divided")
        await desk.request("bank", "ledger.b", options=iris.RequestOptions(idempotency_key="k"))
        with pytest.raises(iris.RemoteError, match=r"outcome is not kept: .*may not publish on 'secret'") as refused:
            await desk.request("bank", "secret", options=iris.RequestOptions(idempotency_key="l"))
        assert refused.value.code == "NotAllowed"
        with pytest.raises(iris.Unknown):
            await desk.request("bank", "secret", options=iris.RequestOptions(idempotency_key="l"))
        with pytest.raises(iris.RemoteError, match="no_outbox"):
            await desk.request("divided", "ledger.b", options=iris.RequestOptions(idempotency_key="k"))
        claim = {
            "cluster": "bank", "caller": "desk", "operation": None, "key": "m", "holder": bytes(16),
            "fingerprint": bytes(16), "budget": 1.0, "keep": 60.0, "rerun": False, "attempt": 1, "outcome": b"b",
        }  # fmt: skip
        event: dict[str, Any] = {"topic": "ledger.a", "key": None, "headers": {}, "data": b"", "packed": False}
        wrong: list[Any] = [
            {"topic": "ledger.>"},
            {"key": 5},
            {"headers": []},
            {"data": "x"},
            {"packed": 1},
            {"more": 1},
        ]
        lists: list[Any] = [5, [5], [event] * 65, [{**event, "data": bytes(200_000)}] * 2]
        for events in (*lists, *([{**event, **change}] for change in wrong)):
            with pytest.raises(iris.RemoteError, match="bad_request"):
                await one.request("bridge", {**claim, "events": events}, operation="key.record")
