"""An idempotent request is tried until its deadline; a caller that is to wait for a first member does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import open_stage


class Store:
    """A service that counts what each host runs."""

    def __init__(self) -> None:
        self.effects: Counter[tuple[str, object]] = Counter()

    def at(self, host: str, seconds: float = 0.0) -> iris.Service:
        store = iris.Service("store")

        @store.request
        async def add(request: iris.Request) -> object:
            self.effects[host, request.payload] += 1
            await trio.sleep(seconds)
            return host

        @store.tunnel
        async def greet(tunnel: iris.Tunnel) -> None:
            await tunnel.send(host)

        @store.broadcast
        async def hear(message: iris.Message) -> None:
            self.effects[host, message.payload] += 1

        return store


class Outcome:
    """Outcome of work in the background."""

    def __init__(self, nursery: trio.Nursery, work: Callable[[], Awaitable[object]]) -> None:
        self._over = trio.Event()
        self._result: object = None
        nursery.start_soon(self._run, work)

    async def _run(self, work: Callable[[], Awaitable[object]]) -> None:
        self._result = await work()
        self._over.set()

    async def wait(self) -> object:
        await self._over.wait()
        return self._result


async def test_a_request_whose_only_member_is_killed_is_run_by_the_one_that_comes_next(
    autojump_clock: MockClock,
) -> None:
    store = Store()
    async with trio.open_nursery() as nursery, open_stage() as stage:
        await stage.member(store.at("one", seconds=1), "one")
        shop = await stage.node("shop")
        await shop.wait_for("store")
        outcome = Outcome(
            nursery, partial(shop.request, "store", b"x", timeout=8, options=iris.RequestOptions(idempotent=True))
        )
        await trio.sleep(0.1)
        stage.crash("one")
        await trio.sleep(0.3)
        await stage.member(store.at("two"), "two")
        assert await outcome.wait() == "two"
        assert store.effects == {("one", b"x"): 1, ("two", b"x"): 1}


async def test_one_that_begins_when_the_last_member_has_just_gone_waits_for_the_next(
    autojump_clock: MockClock,
) -> None:
    store = Store()
    async with trio.open_nursery() as nursery, open_stage() as stage:
        await stage.member(store.at("one"), "one")
        shop = await stage.node("shop")
        await shop.wait_for("store")
        stage.crash("one")
        async with shop.watch("store") as changes:
            async for change in changes:
                if change.kind == "lost":
                    break
        assert shop.members("store") == ()
        outcome = Outcome(
            nursery, partial(shop.request, "store", b"x", timeout=8, options=iris.RequestOptions(idempotent=True))
        )
        with pytest.raises(iris.NoSuchCluster):
            await shop.request("store", b"x", timeout=8)  # a request that may run once only fails at once
        await trio.sleep(1)
        await stage.member(store.at("two"), "two")
        assert await outcome.wait() == "two"


async def greeted(shop: iris.Node) -> object:
    async with shop.open_tunnel("store", timeout=8) as tunnel:
        return await tunnel.receive()


ONCE: dict[str, Callable[[iris.Node], Awaitable[object]]] = {
    "request": lambda shop: shop.request("store", b"x", timeout=8),
    "tunnel": greeted,
}


@pytest.mark.parametrize("ask", ONCE.values(), ids=ONCE)
async def test_what_may_run_once_waits_for_an_only_member_that_is_too_slow_to_show_that_it_lives(
    ask: Callable[[iris.Node], Awaitable[object]], autojump_clock: MockClock
) -> None:
    store = Store()
    async with trio.open_nursery() as nursery, open_stage() as stage:
        await stage.member(store.at("one"), "one")
        shop = await stage.node("shop")
        await shop.wait_for("store")
        for lives in (True, False):
            stage.network.memory.partition(["shop"], ["one"])
            async with shop.watch("store") as changes:
                async for change in changes:
                    if change.kind == "suspected":
                        break
            began = trio.current_time()
            if lives:
                outcome = Outcome(nursery, partial(ask, shop))
                await trio.sleep(1)
                stage.network.memory.heal()
                assert await outcome.wait() == "one"
                assert trio.current_time() - began < 3
            else:
                with pytest.raises(iris.NoSuchCluster):
                    await ask(shop)
                assert shop.members("store") == ()


@pytest.mark.parametrize("ask", ONCE.values(), ids=ONCE)
async def test_what_may_run_once_does_not_wait_for_a_silent_member_whose_connection_then_broke(
    ask: Callable[[iris.Node], Awaitable[object]], autojump_clock: MockClock
) -> None:
    async with open_stage() as stage:
        await stage.member(Store().at("one"), "one")
        shop = await stage.node("shop")
        await shop.wait_for("store")
        stage.network.memory.partition(["shop"], ["one"])
        async with shop.watch("store") as changes:
            async for change in changes:
                if change.kind == "suspected":
                    break
        stage.network.memory.break_links("shop", "one")
        await trio.sleep(0.01)
        began = trio.current_time()
        with pytest.raises(iris.NoSuchCluster):
            await ask(shop)
        assert trio.current_time() - began < 0.05


async def test_where_there_was_no_member_lately_there_is_none_at_once(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await stage.node("shop")
        began = trio.current_time()
        with pytest.raises(iris.NoSuchCluster):
            await shop.request("store", b"x", timeout=60, options=iris.RequestOptions(idempotent=True))
        assert trio.current_time() == began


async def test_who_waits_for_a_member_in_vain_is_told_so_in_the_end(autojump_clock: MockClock) -> None:
    store = Store()
    async with open_stage() as stage:
        await stage.member(store.at("one", seconds=1), "one")
        shop = await stage.node("shop")
        await shop.wait_for("store")
        errors: list[iris.IrisError] = []
        ends: list[float] = []

        async def ask(timeout: float) -> None:
            try:
                await shop.request("store", b"x", timeout=timeout, options=iris.RequestOptions(idempotent=True))
            except iris.IrisError as error:
                errors.append(error)
                ends.append(trio.current_time())

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 3)
            await trio.sleep(0.1)
            stage.crash("one")
        (error,) = errors
        assert type(error) is iris.RequestTimeout
        assert "was lost" in str(error)
        assert ends[0] - began == pytest.approx(3, abs=0.01)

        # A request that begins now waits as long as the cluster may be on its way back, and not until its deadline.
        began = trio.current_time()
        await ask(100)
        assert type(errors[1]) is iris.NoSuchCluster
        assert ends[1] - began < iris.Config().absence_patience
        began = trio.current_time()
        await ask(100)
        assert type(errors[2]) is iris.NoSuchCluster
        assert ends[2] == began


async def test_connections_that_are_cut_again_and_again_do_not_use_a_request_up(autojump_clock: MockClock) -> None:
    store = Store()
    async with open_stage() as stage:
        for host in range(5):
            await stage.member(store.at(f"host {host}", seconds=0.4), f"host-{host}")
        shop = await stage.node("shop")
        await shop.wait_for("store", members=5)
        over = False

        async def cut() -> None:
            while not over:
                await trio.sleep(0.1)
                stage.network.memory.reset()

        replies: list[object] = []

        async def ask(number: int) -> None:
            replies.append(
                await shop.request("store", number, timeout=30, options=iris.RequestOptions(idempotent=True))
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            async with trio.open_nursery() as asking:
                for number in range(10):
                    asking.start_soon(ask, number)
                await trio.sleep(1.5)
                over = True
        assert len(replies) == 10
        assert max(store.effects.values()) == 1, "a member ran a request twice"
        assert shop.statistics().moved > 20, "the connections were not cut often enough: the test shows nothing"


async def test_repeats_stay_within_the_budget_when_nobody_takes_them(autojump_clock: MockClock) -> None:
    """A cluster all of whose members are leaving is not flooded by those who wait for another one."""
    store = Store()
    async with open_stage() as stage:
        members = [await stage.member(store.at(host), host) for host in ("one", "two")]
        shop = await stage.node("shop")
        await shop.wait_for("store", members=2)
        for member in members:
            stage.parts[member.id].patterns.serving.memberships[
                "store"
            ].draining = True  # they have reported it to no node yet

        async def ask() -> None:
            with pytest.raises(iris.RequestTimeout, match="no longer serves"):
                await shop.request("store", b"x", timeout=20, options=iris.RequestOptions(idempotent=True))

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(ask)
        assert store.effects == {}
        # What has not run goes to the other member in any case.  That used up what was saved, 100, and as much again;
        # what 20 seconds and the repeats themselves bring beyond it, 10 a second and 10 %, is what there is.
        assert 200 < shop.statistics().repeated < 200 + 20 * 10


async def test_members_that_are_full_are_still_an_error_at_once(autojump_clock: MockClock) -> None:
    store = Store()
    async with open_stage() as stage:
        await stage.member(store.at("one", seconds=5), "one", limits=iris.Limits(concurrency=1, queue=1))
        shop = await stage.node("shop")
        await shop.wait_for("store")
        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(partial(shop.request, "store", number, timeout=60))
            await trio.sleep(0.1)
            began = trio.current_time()
            with pytest.raises(iris.Overloaded):
                await shop.request("store", b"x", timeout=60, options=iris.RequestOptions(idempotent=True))
            assert trio.current_time() - began < 0.1


# -- waiting for a first member -----------------------------------------------------------------------------

Asking = Callable[[iris.Node, float], Awaitable[object]]


async def ask_plainly(shop: iris.Node, wait: float) -> object:
    return await shop.request("store", b"x", timeout=1, wait=wait)


async def survey(shop: iris.Node, wait: float) -> object:
    async with shop.survey("store", b"x", timeout=1, wait=wait) as answers:
        (reply,) = [answer.payload async for answer in answers]
        return reply


async def talk(shop: iris.Node, wait: float) -> object:
    async with shop.open_tunnel("store", timeout=1, wait=wait) as tunnel:
        return await tunnel.receive()


async def tell(shop: iris.Node, wait: float) -> object:
    await shop.broadcast("store", b"x", wait=wait)
    return "one"


ASKING = [ask_plainly, survey, talk, tell]


@pytest.mark.parametrize("asking", ASKING)
async def test_who_waits_for_a_first_member_gets_it(asking: Asking, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery, open_stage() as stage:
        shop = await stage.node("shop")
        outcome = Outcome(nursery, partial(asking, shop, 5))
        await trio.sleep(3)
        await stage.member(Store().at("one"), "one")
        assert await outcome.wait() == "one"


@pytest.mark.parametrize("asking", ASKING)
async def test_without_a_wait_there_is_no_such_cluster_at_once_and_with_one_after_it(
    asking: Asking, autojump_clock: MockClock
) -> None:
    async with open_stage() as stage:
        shop = await stage.node("shop")
        for wait in (0.0, 2.5):
            began = trio.current_time()
            with pytest.raises(iris.NoSuchCluster, match="'store'"):
                await asking(shop, wait)
            assert trio.current_time() - began == pytest.approx(wait, abs=0.001)


@pytest.mark.parametrize("asking", ASKING)
@pytest.mark.parametrize("wait", [-1, float("nan"), "5", None, True])
async def test_a_wait_is_a_number_of_seconds(asking: Asking, wait: float, autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await stage.node("shop")
        with pytest.raises(iris.ConfigError, match=r"wait is .*: use"):
            await asking(shop, wait)


@pytest.mark.parametrize("asking", ASKING)
async def test_who_is_cancelled_while_he_waits_leaves_nothing_behind(asking: Asking, autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await stage.node("shop")
        with trio.move_on_after(1) as scope:
            await asking(shop, 5)
        assert scope.cancelled_caught
        assert shop.statistics().requests.sent == 0
        assert len(stage.parts[shop.id].membership._changed) == 0
