"""Outcomes of idempotent requests are remembered, so that a repetition has no second effect."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import open_stage


@pytest.mark.parametrize("fails", [False, True])
async def test_idempotent_requests_through_a_lossy_network_have_one_effect_each(
    autojump_clock: MockClock, fails: bool
) -> None:
    effects: Counter[int] = Counter()
    store = iris.Service("store")

    @store.request
    async def add(request: iris.Request) -> object:
        effects[request.payload] += 1
        await trio.sleep(0.01)
        if fails:
            raise ValueError(str(request.payload))
        return request.payload

    async with open_stage(seed=11) as stage:
        member, shop = await stage.pair(store)
        stage.network.memory.loss = 0.1
        async with trio.open_nursery() as nursery:

            async def ask(first: int) -> None:
                for number in range(first, first + 25):
                    with pytest.raises(iris.RemoteError, match=str(number)) if fails else nullcontext():
                        asked = shop.request("store", number, timeout=60, options=iris.RequestOptions(idempotent=True))
                        assert await asked == number

            for first in range(0, 200, 25):
                nursery.start_soon(ask, first)
        stage.network.memory.loss = 0
        assert effects == dict.fromkeys(range(200), 1)
        service = member.statistics().services["store"]
        assert service.repeated > 0, "nothing was lost: the test shows nothing"
        assert fails or (service.served, shop.statistics().requests.answered) == (200, 200)


async def test_what_two_members_may_have_run_is_counted_by_the_caller(autojump_clock: MockClock) -> None:
    """Members remember for themselves only: a second one knows nothing of the first."""
    effects: list[str] = []

    def make(host: str) -> iris.Service:
        store = iris.Service("store")

        @store.request
        async def slow(_: iris.Request) -> str:
            effects.append(host)
            await trio.sleep(3)
            return host

        return store

    async with open_stage(seed=5) as stage:
        one = await stage.member(make("one"), "one")
        await stage.member(make("two"), "two")
        shop = await stage.node("shop")
        await shop.wait_for("store", members=2)
        replies: list[str] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                replies.append(
                    await shop.request("store", timeout=60, options=iris.RequestOptions(idempotent=True, prefer=one.id))
                )

            nursery.start_soon(ask)
            await trio.sleep(0.5)
            stage.network.memory.partition(["one"], ["two", "shop"])  # it lives, and runs on
            await trio.sleep(10)
            stage.network.memory.heal()
            await trio.sleep(30)
        assert replies == ["two"]
        assert effects == ["one", "two"]
        statistics = shop.statistics()
        assert (statistics.repeated, statistics.moved) == (1, 1)


async def test_what_was_refused_and_not_run_is_not_counted_as_moved(autojump_clock: MockClock) -> None:
    store = iris.Service("store")

    @store.request
    async def answer(_: iris.Request) -> None:
        await trio.sleep(1)

    async with open_stage() as stage:
        for host in ("one", "two"):
            await stage.member(store, host, limits=iris.Limits(concurrency=1, queue=1))
        shop = await stage.node("shop")
        await shop.wait_for("store", members=2)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(
                    partial(shop.request, "store", timeout=60, options=iris.RequestOptions(idempotent=True))
                )
        statistics = shop.statistics()
        assert statistics.moved == 0
        assert statistics.requests.answered == 4


async def test_a_draining_member_answers_for_what_it_runs_and_nobody_else_runs_it(autojump_clock: MockClock) -> None:
    effects: Counter[int] = Counter()

    def make() -> iris.Service:
        store = iris.Service("store")

        @store.request
        async def slow(request: iris.Request) -> object:
            effects[request.payload] += 1
            await trio.sleep(2)
            return request.payload

        return store

    async with open_stage(seed=3) as stage:
        one, two = await stage.node("one"), await stage.node("two")
        shop = await stage.node("shop")
        async with two.join("store", make()), trio.open_nursery() as nursery:
            async with one.join("store", make()):
                await shop.wait_for("store", members=2)

                async def ask(number: int) -> None:
                    assert (
                        await shop.request("store", number, timeout=60, options=iris.RequestOptions(idempotent=True))
                        == number
                    )

                for number in range(40):
                    nursery.start_soon(ask, number)
                await trio.sleep(0.5)
                assert sum(effects.values()) == 40
                stage.network.memory.loss = 0.2
            stage.network.memory.loss = 0
        assert effects.keys() == set(range(40))
        # A fifth of all probes is lost too: the member may be presumed lost, and that is counted.
        assert sum(effects.values()) - 40 <= shop.statistics().moved


@pytest.mark.parametrize("refusal", [None, iris.Limits(concurrency=1, queue=1)])
async def test_what_a_member_may_have_run_is_never_said_not_to_have_run(
    autojump_clock: MockClock, refusal: iris.Limits | None
) -> None:
    """Neither when the member leaves while it runs, nor when another one then refuses it."""
    ran: list[object] = []

    def make_store(host: str) -> iris.Service:
        store = iris.Service("store")

        @store.request
        async def hang(request: iris.Request) -> None:
            ran.append((host, request.payload))
            await trio.sleep(50)

        return store

    errors: list[Exception] = []
    async with open_stage() as stage:
        leaving = await stage.node("store", "leaving")
        full = await stage.node("store", "full")
        shop = await stage.node("shop")

        async def ask() -> None:
            try:
                await shop.request("store", "x", timeout=10, options=iris.RequestOptions(idempotent=True))
            except iris.IrisError as error:
                errors.append(error)

        async def serve(node: iris.Node, limits: iris.Limits, task_status: trio.TaskStatus[None]) -> None:
            async with node.join("store", make_store("full"), limits=limits):
                task_status.started()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            async with leaving.join("store", make_store("leaving")):
                await shop.wait_for("store")
                nursery.start_soon(ask)
                await trio.sleep(0.1)
                if refusal is not None:
                    await nursery.start(serve, full, refusal)
                    await shop.wait_for("store", members=2)
                    for number in range(2):
                        nursery.start_soon(
                            partial(
                                shop.request, "store", number, timeout=60, options=iris.RequestOptions(prefer=full.id)
                            )
                        )
            await trio.sleep(1)
            assert ("leaving", "x") in ran
            assert errors == [], "there may still be somebody to run it"
            await trio.sleep(10)
            (error,) = errors
            assert type(error) is iris.RequestTimeout
            assert type(error.__cause__) is iris.MemberLost
            nursery.cancel_scope.cancel()


async def test_the_time_of_a_request_that_has_waited_for_a_member_is_over_when_it_is(autojump_clock: MockClock) -> None:
    """Others have deadlines meanwhile, and what waits for no reply when those are looked at has none kept."""

    def mute(name: str) -> iris.Service:
        service = iris.Service(name)

        @service.request
        async def answer(_: iris.Request) -> None:
            await trio.sleep_forever()

        return service

    async with open_stage() as stage:
        shop, one = await stage.node("shop"), await stage.node("store", "one")
        await stage.member(mute("other"))
        async with one.join("store", mute("store")):
            await shop.wait_for("store")
        await shop.wait_for("other")
        took: dict[str, float] = {}

        async def ask(cluster: str, timeout: float) -> None:
            began = trio.current_time()
            with pytest.raises(iris.RequestTimeout):
                await shop.request(cluster, timeout=timeout, options=iris.RequestOptions(idempotent=True))
            took[cluster] = trio.current_time() - began

        with trio.fail_after(60):
            async with trio.open_nursery() as asking:
                asking.start_soon(ask, "other", 1.0)
                asking.start_soon(ask, "store", 6.0)
                await trio.sleep(1.5)
                async with one.join("store", mute("store")):
                    await trio.sleep(6)
        assert took == pytest.approx({"other": 1.0, "store": 6.0}, abs=0.1)
