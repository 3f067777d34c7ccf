"""Overload, silence and slowness, on whole nodes in virtual time: what callers get, and how much work it makes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.request_arguments import request_arguments
from tests.support.stages import Stage, open_stage


class Store:
    """A cluster whose members take so many seconds for a request, or another time set for one host."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds: dict[str, float] = {}
        self.default = seconds
        self.served: Counter[str] = Counter()
        self.payloads: list[object] = []

    def service(self, host: str) -> iris.Service:
        store = iris.Service("store")

        async def serve(request: iris.Request) -> object:
            self.payloads.append(request.payload)
            await trio.sleep(self.seconds.get(host, self.default))
            self.served[host] += 1
            return host

        store.request(serve)
        return store

    async def start(self, stage: Stage, count: int, **limits: Any) -> dict[str, iris.Node]:
        hosts = [f"store-{index}" for index in range(count)]
        return {host: await stage.member(self.service(host), host, limits=iris.Limits(**limits)) for host in hosts}


class Callers:
    """Requests that do not wait for each other, and what became of them."""

    def __init__(self, node: iris.Node, **options: Any) -> None:
        self.node = node
        self.options = request_arguments(**options)
        self.outcomes: Counter[str] = Counter()
        self.seconds: list[float] = []

    async def ask(self, payload: object = None) -> None:
        began = trio.current_time()
        try:
            await self.node.request("store", payload, **self.options)
        except iris.IrisError as error:
            self.outcomes[type(error).__name__] += 1
        else:
            self.outcomes["reply"] += 1
            self.seconds.append(trio.current_time() - began)

    async def load(self, rate: float, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            for index in range(int(rate * seconds)):
                nursery.start_soon(self.ask)
                if index % max(1, int(rate / 1000)) == 0:
                    await trio.sleep(max(1, int(rate / 1000)) / rate)

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]


@pytest.mark.parametrize(("factor", "goodput"), [(2, 0.9), (10, 0.8)])
async def test_under_overload_a_cluster_goes_on_serving_what_it_can_in_time(
    autojump_clock: MockClock, factor: int, goodput: float
) -> None:
    store = Store(0.05)
    async with open_stage() as stage:
        members = await store.start(stage, 2, concurrency=4)
        capacity = 2 * 4 / 0.05
        shop = await stage.node("shop")
        await shop.wait_for("store", members=2)
        before, during, after = (Callers(shop) for _ in range(3))
        seconds = 5  # so that there is more than one request among the slowest hundredth
        await before.load(0.5 * capacity, 2)
        asked = shop.statistics().requests.sent
        await during.load(factor * capacity, seconds)
        sent = shop.statistics().requests.sent - asked
        received = sum(member.statistics().services["store"].received for member in members.values()) - asked
        assert during.outcomes["reply"] >= goodput * capacity * seconds
        assert during.outcomes.keys() <= {"reply", "Overloaded"}
        assert during.p99 <= 3 * before.p99
        assert received <= 1.2 * sent + 100, "repeats pile up"
        await trio.sleep(0.5)
        await after.load(0.5 * capacity, 2)
        assert after.outcomes == {"reply": int(0.5 * capacity * 2)}
        assert after.p99 <= 1.5 * before.p99


async def test_what_matters_most_is_served_when_not_all_can_be(autojump_clock: MockClock) -> None:
    store = Store(0.02)
    async with open_stage() as stage:
        await store.start(stage, 1, concurrency=4)
        shop = await stage.node("shop")
        await shop.wait_for("store")
        callers = {name: Callers(shop, priority=name) for name in ("low", "normal", "high")}
        async with trio.open_nursery() as nursery:
            for one in callers.values():
                nursery.start_soon(one.load, 150, 4)  # each three quarters of what there is
        assert callers["high"].outcomes["reply"] == 600
        assert callers["high"].p99 < 0.06
        assert callers["low"].outcomes["reply"] < callers["normal"].outcomes["reply"]
        total = sum(one.outcomes["reply"] for one in callers.values())
        assert total >= 0.9 * 4 * 200


async def test_an_important_request_takes_the_place_of_the_newest_that_waits(autojump_clock: MockClock) -> None:
    store = Store(1.0)
    async with open_stage() as stage:
        members = await store.start(stage, 1, concurrency=1, queue=2)
        shop = await stage.node("shop")
        await shop.wait_for("store")
        normal, high = Callers(shop), Callers(shop, priority="high")
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(normal.ask, number)
                await trio.sleep(0.01)
            nursery.start_soon(high.ask, "high")
            await trio.sleep(0.01)
            assert normal.outcomes == {"Overloaded": 1}
        assert store.payloads == [0, "high", 1]
        service = members["store-0"].statistics().services["store"]
        assert (service.received, service.served, service.refused) == (4, 3, 1)


async def test_what_waits_is_bounded_in_bytes_as_well(autojump_clock: MockClock) -> None:
    store = Store(1.0)
    async with open_stage() as stage:
        await store.start(stage, 1, concurrency=1, queue_bytes=2500)
        shop = await stage.node("shop")
        await shop.wait_for("store")
        callers, small = Callers(shop, timeout=60), Callers(shop, timeout=60)
        async with trio.open_nursery() as nursery:
            for _ in range(4):  # one runs, two wait
                nursery.start_soon(callers.ask, bytes(1000))
                await trio.sleep(0.001)
            nursery.start_soon(small.ask, bytes(400))
            await trio.sleep(0.01)
            assert callers.outcomes == {"Overloaded": 1}
        assert callers.outcomes == {"Overloaded": 1, "reply": 3}
        assert small.outcomes == {"reply": 1}
        await callers.ask(bytes(100_000))
        assert callers.outcomes["reply"] == 4, "nothing waits any more, so this one does not wait either"


async def test_headers_of_what_waits_count_as_well(autojump_clock: MockClock) -> None:
    store = Store(1.0)
    async with open_stage() as stage:
        await store.start(stage, 1, concurrency=1, queue_bytes=2500)
        shop = await stage.node("shop")
        await shop.wait_for("store")
        callers = Callers(shop, timeout=60, headers={"a": "x" * 999})
        async with trio.open_nursery() as nursery:
            for _ in range(4):  # one runs, two wait
                nursery.start_soon(callers.ask)
                await trio.sleep(0.001)
            await trio.sleep(0.01)
            assert callers.outcomes == {"Overloaded": 1}
        assert callers.outcomes == {"Overloaded": 1, "reply": 3}


async def test_important_requests_keep_within_the_bytes_too(autojump_clock: MockClock) -> None:
    """As many of the others make room as it takes; none does if that is not enough."""
    store = Store(1.0)
    async with open_stage() as stage:
        await store.start(stage, 1, concurrency=1, queue_bytes=2500)
        shop = await stage.node("shop")
        await shop.wait_for("store")
        running, small = Callers(shop, timeout=60), Callers(shop, timeout=60)
        high = Callers(shop, timeout=60, priority="high")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.ask)
            await trio.sleep(0.001)
            for _ in range(5):
                nursery.start_soon(small.ask, bytes(500))
                await trio.sleep(0.001)
            for size in (2501, 1000, 1000, 1000):  # the last one would take the places of other important ones
                nursery.start_soon(high.ask, bytes(size))
                await trio.sleep(0.001)
            assert (small.outcomes, high.outcomes) == ({"Overloaded": 4}, {"Overloaded": 2})
        assert (small.outcomes, high.outcomes) == ({"Overloaded": 4, "reply": 1}, {"Overloaded": 2, "reply": 2})


async def test_a_member_that_never_answers_is_asked_once_in_a_while_only(autojump_clock: MockClock) -> None:
    store = Store(0.001)
    store.seconds["store-0"] = 3600
    async with open_stage() as stage:
        members = await store.start(stage, 3)
        shop = await stage.node("shop")
        await shop.wait_for("store", members=3)
        callers = Callers(shop, timeout=0.5)
        await callers.load(50, 10)
        assert callers.outcomes["RequestTimeout"] <= 12
        assert callers.outcomes["reply"] >= 488
        del store.seconds["store-0"]
        await callers.load(50, 10)
        assert store.served["store-0"] > 50, "it takes part again"
        assert members["store-0"].statistics().services["store"].received < 500


async def test_hedging_cuts_off_what_one_slow_member_adds_and_costs_a_twentieth(autojump_clock: MockClock) -> None:
    store = Store(0.01)
    async with open_stage() as stage:
        members = await store.start(stage, 3)
        shop = await stage.node("shop")
        await shop.wait_for("store", members=3)
        with pytest.raises(iris.ConfigError, match="idempotent"):
            await shop.request("store", options=iris.RequestOptions(hedge=0.1))
        with pytest.raises(iris.ConfigError, match="hedge is 0"):
            await shop.request("store", options=iris.RequestOptions(hedge=0, idempotent=True))
        hedged = Callers(shop, idempotent=True, hedge=0.03)
        for index in range(500):
            slow = f"store-{index % 3}"  # now one, now another, before anybody can get used to it
            store.seconds = {slow: 1.0} if index % 50 == 0 else {}
            await hedged.ask()
        assert hedged.outcomes == {"reply": 500}
        assert max(hedged.seconds) < 0.05
        received = sum(member.statistics().services["store"].received for member in members.values())
        assert 501 <= received <= 525
        assert shop.statistics().hedged == received - 500
        assert shop.statistics().requests.sent == 500
        await trio.sleep(2)


async def test_a_hedged_request_is_attempted_four_times_in_all_as_any_other(autojump_clock: MockClock) -> None:
    store = Store(1.0)
    full = iris.Limits(concurrency=1, queue=1)
    async with open_stage() as stage:
        members = [await stage.member(store.service(f"store-{n}"), f"store-{n}", limits=full) for n in range(8)]
        filler, shop = await stage.node("filler"), await stage.node("shop")
        for node in (filler, shop):
            await node.wait_for("store", members=8)
        async with trio.open_nursery() as nursery:
            for member in members[1:] * 2:
                nursery.start_soon(partial(filler.request, "store", options=iris.RequestOptions(prefer=member.id)))
            await trio.sleep(0.1)
            await shop.request("store", options=iris.RequestOptions(idempotent=True, hedge=0.1, prefer=members[0].id))
        assert shop.statistics().hedged == 1
        assert sum(member.statistics().services["store"].refused for member in members) == 3


async def test_a_service_with_adaptive_limits_runs_no_more_than_helps(autojump_clock: MockClock) -> None:
    running = 0
    store = iris.Service("store")

    @store.request
    async def serve(_: iris.Request) -> object:
        nonlocal running
        running += 1
        try:
            await trio.sleep(0.01 * max(1.0, running / 4))  # four at the same time use up what is behind it
        finally:
            running -= 1
        return None

    async with open_stage() as stage:
        member = await stage.member(store, limits=iris.Limits(concurrency=200, adaptive=True))
        shop = await stage.node("shop")
        await shop.wait_for("store")
        callers = Callers(shop, timeout=60)

        async def ask_on() -> None:
            for _ in range(100):
                await callers.ask()

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(ask_on)
            await trio.sleep(4)
            assert 3 <= member.statistics().services["store"].concurrency <= 12
    with pytest.raises(iris.ConfigError, match="adaptive"):
        iris.Limits(adaptive=1)  # type: ignore[arg-type]


async def test_repeats_after_refusals_are_limited_and_after_losses_are_not(autojump_clock: MockClock) -> None:
    store = Store(3600)
    async with open_stage() as stage:
        members = await store.start(stage, 4, concurrency=1, queue=1)
        shop = await stage.node("shop")
        await shop.wait_for("store", members=4)
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(Callers(shop, timeout=3600).ask)
            await trio.sleep(0.5)
            callers = Callers(shop)
            for _ in range(1000):
                await callers.ask()
            assert callers.outcomes == {"Overloaded": 1000}
            received = sum(member.statistics().services["store"].received for member in members.values())
            assert 1000 <= received <= 8 + 1.1 * 1000 + 250
            statistics = shop.statistics()
            assert statistics.repeated == received - statistics.requests.sent
            assert statistics.not_repeated > 800
            nursery.cancel_scope.cancel()


async def test_a_member_whose_queue_is_stuck_gets_no_work_from_anybody_until_the_queue_moves(
    autojump_clock: MockClock,
) -> None:
    store = Store()
    store.seconds["store-0"] = 20.0
    async with open_stage() as stage:
        members = await store.start(stage, 3, concurrency=1)
        first, second = await stage.node("first"), await stage.node("second")
        for node in (first, second):
            await node.wait_for("store", members=3)
        sticky, anew = Callers(first, timeout=120.0, prefer=members["store-0"].id), Callers(second, timeout=120.0)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(sticky.ask)
            await trio.sleep(8.0)  # nodes that probe it are notified; none has had an answer from it
            await anew.load(10.0, 4.0)
            assert (anew.outcomes["reply"], store.served["store-0"]) == (40, 0)
            assert members["store-0"].statistics().services["store"].received == 3
        assert store.served["store-0"] == 3
        store.seconds.clear()
        await trio.sleep(3.0)
        await anew.load(10.0, 12.0)
        assert store.served["store-0"] > 10, "what its last request waited says nothing any more"
