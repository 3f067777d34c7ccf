"""Sagas: steps once each, compensations once each, also when the node that runs them dies in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

import iris
from iris.patterns.bridge_protocol import ClaimKey, KeyAnswer
from iris.patterns.service.outcomes import KeyClaims
from iris.testing import open_network
from tests.support.bridge_members import open_member
from tests.support.sagas import open_shops, shop
from tests.support.waiting import wait_until

DONE = ["stock.do 7", "money.do 7", "truck.do 7"]
UNDONE = ["money.undo 7", "stock.undo 7"]


async def order(node: iris.Node, upto: int = 3, **options: Any) -> list[Any]:
    """Run the saga, or the first steps of it before this node is lost."""
    async with node.bridge().saga("order-7", **options) as saga:
        clusters = ("stock", "money", "truck")[:upto]
        replies = [await saga.request(cluster, 7, operation="do", undo="undo") for cluster in clusters]
        if upto < 3:
            await trio.sleep_forever()
    return replies


async def test_a_saga_that_ends_runs_each_step_once_however_often_it_is_run(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        for node in (one, one, two):
            assert await order(node) == ["stock", "money", "truck"]
    assert calls == DONE


@pytest.mark.parametrize("upto", [0, 1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_saga_goes_on_where_its_node_was_lost(tmp_path: Path, upto: int, fails: bool) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, calls, truck={"fails": fails}) as (one, two),
    ):
        with trio.move_on_after(0.7) as lost:
            await order(one, upto)
        assert lost.cancelled_caught
        assert calls == DONE[:upto]
        if fails:
            with pytest.raises(iris.SagaUndone, match="saga 'order-7' was undone: RemoteError: none_left"):
                await order(two)
        else:
            assert await order(two) == ["stock", "money", "truck"]
    assert calls == DONE + (UNDONE if fails else [])


async def test_a_saga_that_fails_is_undone_once_and_stays_so(tmp_path: Path) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, calls, truck={"fails": True}) as (one, two),
    ):
        with pytest.raises(iris.SagaUndone) as undone:
            await order(one)
        assert isinstance(undone.value.__cause__, iris.RemoteError)
        assert undone.value.failed == ()
        for node in (one, two):
            with pytest.raises(iris.SagaUndone, match="none_left"):
                async with node.bridge().saga("order-7"):
                    raise AssertionError("the block is not entered again")

        async def fail() -> None:
            async with one.bridge().saga("order-8") as saga:
                await saga.request("stock", 8, operation="do", undo="undo")
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone, match="ValueError: no"):
            await fail()
    assert calls == [*DONE, *UNDONE, "stock.do 8", "stock.undo 8"]


async def test_compensations_go_on_where_their_node_was_lost(tmp_path: Path) -> None:
    """One of them cannot be reached when the first node is lost."""
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, calls, truck={"fails": True}) as (one, two),
        network.open_node("shops") as more,
    ):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                async with one.bridge().saga("order-7") as saga:
                    await saga.request("late", 7, operation="do", undo="undo")
                    await saga.request("stock", 7, operation="do", undo="undo")
                    await saga.request("truck", 7, operation="do", undo="undo")

            async with more.join("late", shop("late", calls)):
                await one.wait_for("late")
                nursery.start_soon(run)
                with trio.fail_after(10):
                    while "truck.do 7" not in calls:
                        await trio.lowlevel.checkpoint()
            await wait_until(lambda: "stock.undo 7" in calls)
            nursery.cancel_scope.cancel()
        async with more.join("late", shop("late", calls)):
            await two.wait_for("late")
            with pytest.raises(iris.SagaUndone, match="none_left"):
                async with two.bridge().saga("order-7"):
                    raise AssertionError("the block is not entered again")
    assert calls.count("stock.undo 7") == 1
    assert calls.count("late.undo 7") == 1


async def test_a_saga_runs_at_one_node_at_a_time(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        async with one.bridge().saga("order-7") as saga:
            with pytest.raises(iris.RequestTimeout, match="is run by another node"):
                await order(two, timeout=0.5)
            assert await saga.request("stock", 7, operation="do", undo="undo") == "stock"
            saga._steps = 0
            with pytest.raises(iris.RemoteError, match="key_reused"):
                await saga.request("stock", 8, operation="do")
        with pytest.raises(iris.RequestTimeout, match=r"has not ended within 0.5 s"):
            async with one.bridge().saga("order-8", timeout=0.5):
                await trio.sleep_forever()
        async with one.bridge().saga("order-8") as again:
            assert again.attempt == 2
    assert calls == ["stock.do 7"]


async def test_a_compensation_that_raises_is_told_and_the_others_are_called(tmp_path: Path) -> None:
    calls: list[str] = []
    options: dict[str, Any] = {"truck": {"fails": True}, "money": {"undo_fails": True}}
    async with open_network() as network, open_shops(network, tmp_path, calls, **options) as (one, two):
        for node in (one, two):
            with pytest.raises(iris.SagaUndone) as undone:
                await order(node)
            assert undone.value.failed == ("money.undo (order-7/1/undo): stuck: it is gone",)
    assert calls == DONE + UNDONE


async def test_a_step_without_a_reply_may_have_run_and_is_undone(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, _):

        async def run() -> None:
            async with one.bridge().saga("order-7") as saga:
                await saga.request("stock", 7, operation="do", undo="undo")
                with pytest.raises(iris.RemoteError, match="no_such_operation"):
                    await saga.request("money", 7, operation="nothing", undo="undo")
                await saga.request("nobody", 7, operation="do")

        with pytest.raises(iris.SagaUndone, match="NoSuchCluster"):
            await run()
    assert calls == ["stock.do 7", "stock.undo 7"]


async def test_what_a_saga_is_given_is_checked(tmp_path: Path) -> None:
    async with open_network() as network, open_shops(network, tmp_path, []) as (one, _):
        for wrong in ({"name": ""}, {"name": "x" * 129}, {"timeout": 0}, {"keep": 0.5}, {"bridge": "no name"}):
            options: dict[str, Any] = {"name": "order", **wrong}
            with pytest.raises(iris.ConfigError):
                async with one.bridge(options.pop("bridge", "bridge")).saga(**options):
                    pass
        with pytest.raises(iris.NoSuchCluster, match=r"a saga needs a bridge, .*start one"):
            async with one.bridge("nowhere").saga("order"):
                pass
        with pytest.raises(iris.SagaUndone, match="limit is 131072 bytes"):
            async with one.bridge().saga("large") as saga:
                await saga.request("stock", bytes(131073), operation="do")
        with pytest.raises(iris.SagaUndone, match="is not an operation name"):
            async with one.bridge().saga("misnamed") as saga:
                await saga.request("stock", 7, operation="do", undo="no name")


async def test_a_saga_whose_node_has_died_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives nothing back, and the bridge notices that it is gone."""
    monkeypatch.setattr("iris.spark_bridge.outcomes.keeper._MEETING", 0.0)
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, calls, truck={"fails": True}) as (_, two),
        network.open_node("desk", host="dying") as dying,
    ):
        await dying.wait_for("truck")
        await dying.wait_for("bridge")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(order, dying, 2)
            with trio.fail_after(10):
                while len(calls) < 2:
                    await trio.lowlevel.checkpoint()
            network.memory.crash("dying")
            with pytest.raises(iris.SagaUndone, match="none_left"):
                await order(two)
            nursery.cancel_scope.cancel()
    assert calls == DONE + UNDONE


def odd(calls: list[str], **options: Any) -> iris.Service:
    """Steps that have their effect, and of which the caller gets an error all the same."""
    service = iris.Service("odd", outcomes=iris.Outcomes(rerun=True, **options))

    @service.request("do")
    async def do(request: iris.Request) -> object:
        calls.append(f"odd.do {request.payload}")
        if request.payload == "outbox":
            assert request.outbox is not None
            request.outbox.publish("t.a", b"")
        if request.payload == "raises":
            raise ConnectionError("lost while it committed")
        replies = {"unencodable": object(), "large": bytes(2**21), "kept": bytes(300_000)}
        return replies.get(request.payload, bytes(5000))

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append(f"odd.undo {request.payload} of {request.undoes}")

    return service


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ("raises", "error"),
        ("unencodable", "LocalProtocolError"),
        ("large", "PayloadTooLarge"),
        ("kept", "reply_too_large_to_keep"),
        ("outbox", "no_outbox"),
        ("reused", "key_reused"),
        ("refused", "reply_too_large"),
    ],
)
async def test_a_step_that_ran_is_undone_whatever_its_caller_gets(tmp_path: Path, payload: str, code: str) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["t.>"], of=2),
        network.open_node("odd") as served,
        served.join("odd", odd(calls)),
        network.open_node("desk", config=iris.Config(max_payload=4096)) as desk,
    ):
        await desk.wait_for("odd")
        if payload == "reused":
            with pytest.raises(iris.RemoteError):
                await desk.request(
                    "odd", "before", operation="do", options=iris.RequestOptions(idempotency_key="order-7/0")
                )
            calls.clear()

        async def run() -> None:
            async with desk.bridge().saga("order-7") as saga:
                await saga.request("odd", payload, operation="do", undo="undo")

        with pytest.raises(iris.SagaUndone, match=f"RemoteError: {code}") as undone:
            await run()
        assert undone.value.failed == ()
    done = [] if payload == "reused" else [f"odd.do {payload}"]
    assert calls == [*done, f"odd.undo {payload} of order-7/0"]


async def test_what_a_lost_node_has_begun_is_undone_by_one_that_does_not_come_that_far(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        with trio.move_on_after(0.7):
            await order(one, 2)
        assert calls == DONE[:2]

        async def run() -> None:
            async with two.bridge().saga("order-7") as saga:
                await saga.request("stock", 7, operation="do", undo="undo")
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone, match="ValueError: no") as undone:
            await run()
        assert undone.value.failed == ()
    assert calls == [*DONE[:2], *UNDONE]


@pytest.mark.parametrize("made", ["another", "fewer"])
async def test_a_block_that_makes_other_steps_than_before_is_undone(tmp_path: Path, made: str) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        with trio.move_on_after(0.7):
            await order(one, 2)

        async def run() -> None:
            async with two.bridge().saga("order-7") as saga:
                await saga.request("stock", 7, operation="do", undo="undo")
                if made == "another":
                    await saga.request("money", 8, operation="do", undo="undo")

        with pytest.raises(iris.SagaUndone, match="key_reused"):
            await run()
    assert calls == [*DONE[:2], *UNDONE]


async def test_a_node_that_was_taken_over_begins_nothing_more(tmp_path: Path) -> None:
    calls: list[str] = []
    async with open_network() as network, open_shops(network, tmp_path, calls) as (one, two):
        begun, over = trio.Event(), trio.Event()

        async def run() -> None:
            async with one.bridge().saga("order-7", timeout=0.5) as saga:
                await saga.request("stock", 7, operation="do", undo="undo")
                begun.set()
                with trio.CancelScope(shield=True):  # as if its process had stood still
                    await over.wait()
                    await saga.request("money", 7, operation="do", undo="undo")

        async with trio.open_nursery() as nursery:

            async def lost() -> None:
                with pytest.raises(iris.LeaseLost, match="taken over"):
                    await run()

            nursery.start_soon(lost)
            await begun.wait()
            async with two.bridge().saga("order-7") as saga:
                assert saga.attempt == 2
                await saga.request("stock", 7, operation="do", undo="undo")
                over.set()
                with trio.move_on_after(0.3):
                    await trio.sleep_forever()
    assert calls == DONE[:1]


async def test_a_step_is_undone_when_its_handler_has_ended_and_does_not_begin_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    claiming, undone = trio.Event(), trio.Event()
    service = iris.Service("slow", outcomes=iris.Outcomes(rerun=True))

    @service.request("do")
    async def do(request: iris.Request) -> None:
        calls.append("begins")
        try:
            await trio.sleep_forever()
        finally:
            calls.append("ends")

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        calls.append(f"undo {request.payload}")

    async with (
        open_network() as network,
        open_shops(network, tmp_path, []) as (one, _),
        network.open_node("shops") as served,
        served.join("slow", service),
    ):
        await one.wait_for("slow")

        async def run(name: str, payload: str, timeout: float) -> None:
            async with one.bridge().saga(name) as saga:
                with trio.move_on_after(timeout):
                    await saga.request("slow", payload, operation="do", undo="undo", timeout=3)
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone) as error:
            await run("runs", "what runs", 0.5)
        assert error.value.failed == ()
        assert calls == ["begins", "ends", "undo what runs"]

        # The step's claim comes late to the bridge: after its key was closed.
        claim = KeyClaims.claim

        async def late(claims: KeyClaims, terms: ClaimKey, deadline: float) -> KeyAnswer:
            if terms.on == "do":
                claiming.set()
                with trio.CancelScope(shield=True):
                    await undone.wait()
                    with pytest.raises(iris.RemoteError, match=r"key_closed: .*does not begin any more"):
                        await claim(claims, terms, trio.current_time() + 5)
                calls.append("refused")
            return await claim(claims, terms, deadline)

        monkeypatch.setattr(KeyClaims, "claim", late)
        calls.clear()
        with pytest.raises(iris.SagaUndone) as error:
            await run("late", "what is late", 0.5)
        assert claiming.is_set()
        assert error.value.failed == ()
        undone.set()
        with trio.fail_after(5):
            while calls != ["refused"]:
                await trio.lowlevel.checkpoint()


async def test_a_step_whose_outcome_was_forgotten_is_undone_all_the_same(tmp_path: Path) -> None:
    calls: list[str] = []
    async with (
        open_network() as network,
        open_shops(network, tmp_path, []) as (one, _),
        network.open_node("shops") as served,
        served.join("odd", odd(calls, keep=1.0)),
    ):
        await one.wait_for("odd")

        async def run() -> None:
            async with one.bridge().saga("order-7") as saga:
                await saga.request("odd", 7, operation="do", undo="undo")
                await trio.sleep(1.1)
                raise ValueError("no")

        with pytest.raises(iris.SagaUndone):
            await run()
    assert calls == ["odd.do 7", "odd.undo 7 of order-7/0"]


async def test_compensations_that_can_never_be_asked_are_named(tmp_path: Path) -> None:
    async with open_network() as network, open_shops(network, tmp_path, []) as (one, _):

        async def run(name: str, timeout: float) -> None:
            async with one.bridge().saga(name) as saga:
                await saga.request("stock", 7, operation="do", undo="nothing", timeout=timeout)
                raise ValueError("no")

        for timeout, why in ((5.0, "no_such_operation"), (-1.0, "timeout")):
            with pytest.raises(iris.SagaUndone) as undone:
                await run(f"order{timeout}", timeout)
            (failed,) = undone.value.failed
            assert failed.startswith(f"stock.nothing (order{timeout}/0/undo): ")
            assert why in failed
