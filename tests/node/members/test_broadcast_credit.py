"""Back-pressure of broadcasts: members grant credit, nothing is lost unsaid, and who grants none holds up nobody."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.config import KIB
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.meshes import MeshNode, open_meshes
from tests.support.messages import raw
from tests.support.stages import IN_FLIGHT, Stage, open_stage

PATIENCE = iris.Config().broadcast_patience
SMALL = iris.Config(broadcast_window=256 * KIB)
"""A window of 64 small broadcasts."""
NARROW = iris.Config(broadcast_window=256 * KIB, relay_above=4, relay_fan_out=2)
"""Trees of three hops with a dozen members, and the same window."""


class Cache:
    """A cluster that records what each host receives; hosts may be slow, or stuck."""

    def __init__(self) -> None:
        self.heard: dict[str, list[object]] = {}
        self.pause: dict[str, float] = {}
        self.stuck: dict[str, trio.Event] = {}

    async def start(self, stage: Stage, count: int, config: iris.Config | None = None) -> dict[str, iris.Node]:
        return {
            host: await stage.member(self.service(host), host, config=config)
            for host in (f"cache-{number}" for number in range(count))
        }

    def service(self, host: str) -> iris.Service:
        cache = iris.Service("cache")
        heard: list[object] = []
        self.heard[host] = heard

        async def note(message: iris.Message) -> None:
            if host in self.stuck:
                await self.stuck[host].wait()
            if host in self.pause:
                await trio.sleep(self.pause[host])
            heard.append(message.payload)

        cache.broadcast(note)
        return cache


async def test_an_idle_member_hears_every_one_of_many_broadcasts_in_a_row(autojump_clock: MockClock) -> None:
    cache = Cache()
    async with open_stage() as stage:
        members = await cache.start(stage, 1)
        shop = await stage.node("shop")
        await shop.wait_for("cache")
        before = members["cache-0"].statistics().links[shop.id].posted
        for number in range(5000):
            await shop.broadcast("cache", number)
        await trio.sleep(IN_FLIGHT)
        assert cache.heard["cache-0"] == list(range(5000))
        broadcasts = shop.statistics().broadcasts
        assert (broadcasts.sent, broadcasts.handed_over) == (5000, 5000)
        assert members["cache-0"].statistics().services["cache"].broadcasts == 5000
        reports = members["cache-0"].statistics().links[shop.id].posted - before
        assert reports < 5000 / 256 + 1, "a report for each half window, one for the rest, and no other messages"


@pytest.mark.parametrize("config", [SMALL, NARROW], ids=["told by the sender", "over a relay tree"])
async def test_the_slowest_member_sets_the_pace_and_everybody_hears_everything(
    autojump_clock: MockClock, config: iris.Config
) -> None:
    cache = Cache()
    cache.pause["cache-3"] = 0.01
    async with open_stage() as stage:
        members = await cache.start(stage, 7, config)
        shop = await stage.node("shop", config=config)
        await shop.wait_for("cache", members=7)
        began = trio.current_time()
        for number in range(300):
            await shop.broadcast("cache", number)
            waiting = members["cache-3"].statistics().services["cache"].broadcasts_queued
            assert waiting <= 64, "a window of small broadcasts"
        assert trio.current_time() - began > 2, "what does not fit into the window takes the slow one's time"
        await trio.sleep(1)
        assert cache.heard == {host: list(range(300)) for host in members}
        broadcasts = shop.statistics().broadcasts
        assert (broadcasts.handed_over, broadcasts.refused) == (2100, 0)


@pytest.mark.parametrize("config", [SMALL, NARROW], ids=["told by the sender", "over a relay tree"])
async def test_a_member_that_hangs_is_passed_over_counted_and_back_when_it_goes_on(
    autojump_clock: MockClock, config: iris.Config
) -> None:
    cache = Cache()
    cache.stuck["cache-2"] = trio.Event()
    async with open_stage() as stage:
        members = await cache.start(stage, 7, config)
        shop = await stage.node("shop", config=config)
        await shop.wait_for("cache", members=7)
        began = trio.current_time()
        longest = 0.0
        for number in range(300):
            before = trio.current_time()
            await shop.broadcast("cache", number)
            longest = max(longest, trio.current_time() - before)
        assert PATIENCE <= longest < PATIENCE + 0.5
        assert trio.current_time() - began < PATIENCE + 2, "it was waited for once"
        others = [host for host in members if host != "cache-2"]
        await trio.sleep(IN_FLIGHT)
        assert all(cache.heard[host] == list(range(300)) for host in others)
        broadcasts = shop.statistics().broadcasts
        waiting = members["cache-2"].statistics().services["cache"].broadcasts_queued
        assert waiting <= 64
        assert broadcasts.refused_because == {"no credit": 300 - waiting}
        assert broadcasts.refused == 300 - waiting
        cache.stuck["cache-2"].set()
        await trio.sleep(IN_FLIGHT)
        await shop.broadcast("cache", "after")
        await trio.sleep(IN_FLIGHT)
        assert cache.heard["cache-2"] == [*range(waiting), "after"]
        assert shop.statistics().broadcasts.refused == 300 - waiting


async def test_a_slow_member_is_waited_for_as_long_as_it_goes_on(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.pause["cache-0"] = PATIENCE - 1
    async with open_stage() as stage:
        await cache.start(stage, 1)
        shop = await stage.node("shop")
        await shop.wait_for("cache")
        for number in range(20):
            await shop.broadcast("cache", number)
        await trio.sleep(20 * PATIENCE)
        assert cache.heard["cache-0"] == list(range(20))
        assert shop.statistics().broadcasts.refused == 0


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.long)])
async def test_many_senders_to_one_slow_member_all_get_through(autojump_clock: MockClock, count: int) -> None:
    cache = Cache()
    cache.pause["member"] = 0.001
    senders = [f"sender-{number}" for number in range(count)]
    async with open_meshes("member", *senders, linked=False) as fleet:
        member = fleet["member"]
        async with member.serve(cache.service("member")) as membership:

            async def send(sender: MeshNode) -> None:
                await sender.mesh.connect([member.url], expected=member.id)
                for number in range(150):
                    await sender.broadcasts.broadcast("cache", number)

            async with trio.open_nursery() as nursery:
                for name in senders:
                    nursery.start_soon(send, fleet[name])
            await trio.sleep(20)
            assert sorted(map(str, cache.heard["member"])) == sorted(map(str, list(range(150)) * count))
            assert membership.statistics().broadcasts_refused == 0
            assert all(fleet[name].broadcasts.tally.handed_over == 150 for name in senders)


async def test_what_one_sender_has_waiting_delays_another_by_one_broadcast_for_each_of_its_own(
    autojump_clock: MockClock,
) -> None:
    cache = Cache()
    cache.stuck["cache-0"] = trio.Event()
    async with open_stage() as stage:
        await cache.start(stage, 1)
        busy, quiet = [await stage.node(name) for name in ("busy", "quiet")]
        for sender in (busy, quiet):
            await sender.wait_for("cache")
        for number in range(60):
            await busy.broadcast("cache", number)
        await trio.sleep(IN_FLIGHT)
        for word in ("a", "b", "c"):
            await quiet.broadcast("cache", word)
        await trio.sleep(IN_FLIGHT)
        cache.stuck["cache-0"].set()
        await trio.sleep(IN_FLIGHT)
        heard = cache.heard["cache-0"]
        assert heard[:6] == [0, "a", 1, "b", 2, "c"]
        assert heard[6:] == list(range(3, 60))


async def test_a_broadcast_that_is_cancelled_while_it_waits_was_told_to_nobody(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.stuck["cache-1"] = trio.Event()
    async with open_stage() as stage:
        members = await cache.start(stage, 2)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=2)
        sent = 0
        with trio.move_on_after(1):
            while True:
                await shop.broadcast("cache", sent)
                sent += 1
        assert 0 < sent < 1100
        broadcasts = shop.statistics().broadcasts
        assert (broadcasts.sent, broadcasts.handed_over, broadcasts.expired) == (2 * sent + 2, 2 * sent, 2)
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shop.broadcast, "cache", "never")
                await trio.sleep(0.5)
                assert shop.statistics().broadcasts.waiting == 2
        assert shop.statistics().broadcasts.expired == 4
        cache.stuck["cache-1"].set()
        await shop.broadcast("cache", "after")
        await trio.sleep(IN_FLIGHT)
        assert cache.heard == {host: [*range(sent), "after"] for host in members}


async def test_broadcasts_of_several_tasks_wait_in_the_order_in_which_they_came(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.pause["cache-0"] = 0.01
    async with open_stage() as stage:
        await cache.start(stage, 1, SMALL)
        shop = await stage.node("shop", config=SMALL)
        await shop.wait_for("cache")
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(shop.broadcast, "cache", number)
                await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(4)
        assert cache.heard["cache-0"] == list(range(300))


async def test_a_member_that_dies_is_waited_for_no_more(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.stuck["cache-1"] = trio.Event()
    async with open_stage() as stage:
        await cache.start(stage, 2)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=2)

        async def crash() -> None:
            await trio.sleep(0.5)
            stage.crash("cache-1")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            for number in range(1500):
                await shop.broadcast("cache", number)
        await trio.sleep(IN_FLIGHT)
        assert cache.heard["cache-0"] == list(range(1500))
        broadcasts = shop.statistics().broadcasts
        assert broadcasts.refused == 0
        assert broadcasts.sent == broadcasts.handed_over + sum(broadcasts.lost.values())


async def test_a_member_that_leaves_tells_the_sender_what_its_handlers_did_not_hear(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.stuck["cache"] = trio.Event()
    async with open_stage() as stage:
        leaving = await stage.node("cache", config=iris.Config(drain_timeout=0.5))
        shop = await stage.node("shop")
        async with leaving.join("cache", cache.service("cache")) as membership:
            await shop.wait_for("cache")
            for number in range(10):
                await shop.broadcast("cache", number)
            await trio.sleep(IN_FLIGHT)
        await trio.sleep(IN_FLIGHT)
        assert membership.statistics().broadcasts_cancelled == 10
        broadcasts = shop.statistics().broadcasts
        assert (broadcasts.handed_over, broadcasts.refused) == (0, 10)
        assert broadcasts.refused_because == {"refused by the member": 10}


async def test_a_member_that_was_passed_over_and_joins_again_hears_again(autojump_clock: MockClock) -> None:
    cache = Cache()
    cache.stuck["cache"] = trio.Event()
    async with open_stage() as stage:
        member = await stage.node("cache", config=iris.Config(drain_timeout=0.1))
        shop = await stage.node("shop")
        async with member.join("cache", cache.service("cache")):
            await shop.wait_for("cache")
            for number in range(1500):
                await shop.broadcast("cache", number)
        cache.stuck.clear()
        async with member.join("cache", cache.service("cache")):
            await trio.sleep(1)
            for _ in range(3):
                await shop.broadcast("cache", "again")
                await trio.sleep(PATIENCE)
        assert cache.heard["cache"][-1] == "again"


async def test_a_node_that_may_not_broadcast_is_told_and_not_held_up(autojump_clock: MockClock) -> None:
    closed = iris.Service("closed", allow=["nobody"])
    async with open_stage() as stage:
        stage.harmless = ("broadcast not allowed",)
        member, shop = await stage.pair(closed)
        began = trio.current_time()
        for number in range(100):
            await shop.broadcast("closed", number)
        assert trio.current_time() - began < 2
        await trio.sleep(IN_FLIGHT)
        assert shop.statistics().broadcasts.refused_because == {"refused by the member": 100}
        service = member.statistics().services["closed"]
        assert (service.broadcasts_received, service.broadcasts_refused) == (100, 100)


async def test_a_handler_that_broadcasts_to_its_own_full_cluster_is_not_stuck_for_ever(
    autojump_clock: MockClock,
) -> None:
    cache = iris.Service("cache")
    heard: list[object] = []

    async with open_stage() as stage:
        node = await stage.node("cache")

        @cache.broadcast
        async def spread(message: iris.Message) -> None:
            heard.append(message.payload)
            if message.payload == "seed":
                for number in range(1200):
                    await node.broadcast("cache", number)

        async with node.join("cache", cache):
            await node.broadcast("cache", "seed")
            await trio.sleep(2 * PATIENCE)
            broadcasts = node.statistics().broadcasts
            assert len(heard) + broadcasts.refused == 1201
            assert 0 < broadcasts.refused == broadcasts.refused_because["no credit"]


async def test_lost_frames_do_not_leave_a_sender_without_credit(autojump_clock: MockClock) -> None:
    cache = Cache()
    async with open_stage(loss=0.05, seed=5) as stage:
        stage.harmless = ("",)
        members = await cache.start(stage, 3)
        shop = await stage.node("shop")
        await shop.wait_for("cache", members=3, timeout=60)
        for number in range(1000):
            await shop.broadcast("cache", number)
        await trio.sleep(2)
        stage.network.memory.loss = 0.0
        await trio.sleep(2 * PATIENCE)
        heard = {host: len(cache.heard[host]) for host in members}
        await shop.broadcast("cache", "after")
        await trio.sleep(IN_FLIGHT)
        assert {host: len(cache.heard[host]) for host in members} == {host: count + 1 for host, count in heard.items()}
        for host in members:
            numbers = [number for number in cache.heard[host] if isinstance(number, int)]
            assert sorted(numbers) == numbers, "in order"


async def test_a_sender_that_heeds_no_credit_is_refused_counted_told_and_harms_nobody_else(
    autojump_clock: MockClock,
) -> None:
    cache = Cache()
    cache.stuck["cache-0"] = trio.Event()
    async with open_stage() as stage:
        members = await cache.start(stage, 1)
        honest, hostile = await stage.node("shop"), await stage.node("flood")
        for node in (honest, hostile):
            await node.wait_for("cache")
        member = members["cache-0"]
        for number in range(5000):
            stage.parts[hostile.id].mesh.post(member.id, kinds.Broadcast("cache", None, b"x" * 100, number % 7), 100)
            if number % 500 == 0:
                await trio.sleep(0.01)
        await trio.sleep(1)
        service = member.statistics().services["cache"]
        assert service.broadcasts_queued <= 1024
        assert service.broadcasts_refused == 5000 - service.broadcasts_queued
        assert member.statistics().links[hostile.id].posted < 200, "refusals are reported together"
        for number in range(64):
            await honest.broadcast("cache", number)
        cache.stuck["cache-0"].set()
        await trio.sleep(1)
        assert cache.heard["cache-0"][-64:] == list(range(64))
        assert honest.statistics().broadcasts.refused == 0


@pytest.mark.parametrize("granted", [(), (0, 0, 0, 0), (0, 2**61, 1, 2**61), (2**61, 0, 2**61, 0)])
async def test_a_member_that_lies_about_its_credit_holds_nobody_up_and_leaves_the_books_in_order(
    autojump_clock: MockClock, granted: tuple[int, ...]
) -> None:
    cache = Cache()
    async with open_stage() as stage:
        members = await cache.start(stage, 2, SMALL)
        shop = await stage.node("shop", config=SMALL)
        await shop.wait_for("cache", members=2)
        liar = members["cache-0"]
        membership = stage.parts[liar.id].patterns.serving.memberships["cache"]
        messages = [raw(kinds.BroadcastCredit, "cache", *granted)] if granted else []

        class Liar:
            def report_credit(self, node: NodeId, report: kinds.BroadcastCredit) -> bool:
                for message in messages:
                    stage.parts[liar.id].mesh.post(node, message, 0)
                return True

        membership.broadcasts._reporter = Liar()
        began = trio.current_time()
        for number in range(500):
            await shop.broadcast("cache", number)
        assert trio.current_time() - began < PATIENCE + 2
        await trio.sleep(IN_FLIGHT)
        assert cache.heard["cache-1"] == list(range(500))
        broadcasts = shop.statistics().broadcasts
        assert broadcasts.sent == 1000
        assert broadcasts.handed_over >= 500 or granted, "what was not refused"
