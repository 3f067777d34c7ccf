"""Membership as a program sees it: members, changes, waiting, draining, sites, several services on one node."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
import iris.testing
from iris.kernel.wire import kinds
from tests.support.stages import open_stage


def make_service(name: str, answer: object = None, *, seconds: float = 0.0) -> iris.Service:
    service = iris.Service(name)

    async def reply(_: iris.Request) -> object:
        await trio.sleep(seconds)
        return answer

    service.request(reply)
    return service


async def test_members_say_who_and_where_they_are(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        one = await stage.member(make_service("store"), "one", site="berlin")
        two = await stage.member(make_service("store"), "two", site="berlin")
        shop = await stage.node("shop", site="berlin")
        await shop.wait_for("store", members=2)
        members = {member.node: member for member in shop.members("store")}
        assert members.keys() == {one.id, two.id}
        first = members[one.id]
        assert (first.speaks_for, first.site, first.status) == ("store", "berlin", "alive")
        assert first.addresses == one.addresses == ("mem://one",)
        assert (members[two.id].site, one.site, shop.site) == ("berlin", "berlin", "berlin")
        assert shop.members("nobody") == ()


async def test_clusters_come_and_go_with_their_members(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        node, shop = await stage.node("store"), await stage.node("shop")
        assert shop.clusters() == ()
        async with node.join("store", make_service("store")), node.join("archive", make_service("archive")):
            await shop.wait_for("store")
            await shop.wait_for("archive")
            assert shop.clusters() == ("archive", "store")
        await trio.sleep(1)
        assert shop.clusters() == ()


async def test_a_watch_tells_of_joining_draining_and_leaving(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        node, shop = await stage.node("store"), await stage.node("shop")
        async with shop.watch("store") as changes, trio.open_nursery() as nursery:
            async with node.join("store", make_service("store", seconds=1)):
                joined = await anext(changes)
                assert (joined.kind, joined.cluster, joined.member.node) == ("joined", "store", node.id)
                nursery.start_soon(shop.request, "store")
                await trio.sleep(0.1)
            kinds = [(await anext(changes)).kind, (await anext(changes)).kind]
            assert kinds == ["draining", "left"]


async def test_a_watch_begins_with_those_present_and_misses_nothing_when_cancelled(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        one = await stage.member(make_service("store"), "one")
        node, shop = await stage.node("store", "two"), await stage.node("shop")
        await shop.wait_for("store")
        async with shop.watch("store") as changes:
            assert (await anext(changes)).member.node == one.id
            with trio.move_on_after(0.5) as scope:
                await anext(changes)
            assert scope.cancelled_caught
            for _ in range(3):
                async with node.join("store", make_service("store")):
                    await shop.wait_for("store", members=2)
                await trio.sleep(1)  # who is back before the news of the leaving has arrived was never away
            kinds: Counter[str] = Counter()
            while kinds["left"] < 3:
                change = await anext(changes)
                assert change.member.node == node.id
                kinds[change.kind] += 1
            assert kinds["joined"] == 3


async def test_a_draining_member_gets_no_new_work_and_finishes_what_it_has(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        leaving = await stage.node("store", "leaving")
        shop = await stage.node("shop")
        replies: list[object] = []

        async def ask() -> None:
            replies.append(await shop.request("store"))

        async with (
            trio.open_nursery() as nursery,
            leaving.join("store", make_service("store", "old", seconds=2)) as membership,
        ):
            await shop.wait_for("store")
            nursery.start_soon(ask)
            await trio.sleep(0.1)
            nursery.start_soon(observe_draining, shop, leaving)
        assert replies == ["old"]
        assert (membership.cluster, membership.statistics().served) == ("store", 1)


async def observe_draining(shop: iris.Node, leaving: iris.Node) -> None:
    """See a member drain, and nobody else there to ask."""
    await trio.sleep(1)
    assert [(member.node, member.status) for member in shop.members("store")] == [(leaving.id, "draining")]
    with pytest.raises(iris.NoSuchCluster):
        await shop.request("store")


async def test_waiting_ends_when_enough_have_come(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        one, two, shop = await stage.node("store", "one"), await stage.node("store", "two"), await stage.node("shop")
        waited: list[float] = []
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await shop.wait_for("store", members=2, timeout=60)
                waited.append(trio.current_time() - began)

            nursery.start_soon(wait)
            async with one.join("store", make_service("store")):
                await trio.sleep(5)
                assert not waited
                async with two.join("store", make_service("store")):
                    await trio.sleep(1)
        assert 5 <= waited[0] < 5.5


async def test_two_services_on_one_node_have_limits_and_counters_of_their_own(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        node, shop = await stage.node("store"), await stage.node("shop")
        refused = 0
        async with (
            node.join("store", make_service("store", "s", seconds=1), limits=iris.Limits(concurrency=1, queue=1)),
            node.join("archive", make_service("archive", "a")) as archive,
        ):
            await shop.wait_for("store")
            await shop.wait_for("archive")
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    nonlocal refused
                    try:
                        assert await shop.request("store") == "s"
                    except iris.Overloaded:
                        refused += 1

                for _ in range(4):
                    nursery.start_soon(ask)
                await trio.sleep(0.1)
                for _ in range(10):
                    assert await shop.request("archive") == "a"
            services = node.statistics().services
            assert services.keys() == {"store", "archive"}
            assert (services["store"].served, services["store"].refused, refused) == (2, 2, 2)
            assert services["archive"].served == 10
            assert services["archive"] == archive.statistics()
        assert not node.statistics().services


@pytest.mark.parametrize("limit", [0, -1, True, 0.5])
def test_limits_that_make_no_sense_are_refused(limit: int) -> None:
    with pytest.raises(iris.ConfigError, match="concurrency"):
        iris.Limits(concurrency=limit)
    with pytest.raises(iris.ConfigError, match="queue"):
        iris.Limits(queue=limit)


async def test_statistics_are_nested_by_pattern_and_do_not_change_afterwards(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        node = await stage.member(make_service("store"))
        shop = await stage.node("shop")
        await shop.wait_for("store")
        async with shop.subscribe("t"), shop.subscribe("t") as second, shop.subscribe("u"):
            before = shop.statistics()
            await shop.request("store")
            await shop.publish("t", 1)
            await anext(second)
            after = shop.statistics()
        assert (before.requests.sent, after.requests.sent) == (0, 1)
        assert {pattern: len(found) for pattern, found in after.subscriptions.items()} == {"t": 2, "u": 1}
        assert [found.delivered for found in after.subscriptions["t"]] == [0, 1]
        assert (before.published, after.published) == (0, 1)
        assert after.links.keys() == {node.id}
        assert after.tunnels.opened == 0


async def test_what_a_member_tells_that_cannot_be_is_refused_counted_and_told_in_one_line(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        iris.testing.open_network(seed=7) as network,
        network.open_node("shop") as node,
        network.open_node("liar") as liar,
        network.open_node("x") as other,
    ):
        swim = node._membership._swim
        clone = structs.replace(swim.own, incarnation=9, site="elsewhere")
        clone = structs.replace(clone, signature=node._mesh.identity.sign(clone.statement()))
        forged = structs.replace(other._membership._swim.own, incarnation=9)
        for message in (
            kinds.Gossip((clone.as_update(),)),
            kinds.Gossip((forged.as_update(),)),
            kinds.Wanted(b"short"),
        ):
            for _ in range(3):
                liar._mesh.post(node.id, message, 64)
        await trio.sleep(1)
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(told) == 3
        for line in told:
            assert line.startswith(f"node {liar.id} of cluster 'liar' told of members what is refused: ")
        refusals = node.statistics().refusals
        assert refusals["membership: another process uses this node's id and key"] == 3
        assert refusals["membership: a record that its subject did not sign"] == 3
        assert sum(count for reason, count in refusals.items() if reason.startswith("membership: ")) == 9
        assert not other.statistics().refusals
        assert {node.id, liar.id} == set(other._mesh.peers)


async def test_who_follows_a_watch_in_another_task_stops_when_its_block_is_left(autojump_clock: MockClock) -> None:
    seen: list[str] = []

    async def follow(changes: iris.Watch) -> None:
        seen.extend([change.kind async for change in changes])
        seen.append("end")

    async with open_stage() as stage:
        node = await stage.node("shop")
        async with trio.open_nursery() as nursery, node.watch("nobody") as changes:
            nursery.start_soon(follow, changes)
            await trio.sleep(1)
    assert seen == ["end"]


async def test_of_two_tasks_that_join_a_cluster_at_the_same_time_one_is_told(autojump_clock: MockClock) -> None:
    outcomes: list[str] = []

    async def join(node: iris.Node) -> None:
        try:
            async with node.join("store", make_service("store")):
                outcomes.append("joined")
                await trio.sleep(1)
        except iris.ConfigError as error:
            outcomes.append(str(error))

    async with open_stage() as stage:
        node = await stage.node("store")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(join, node)
            nursery.start_soon(join, node)
    assert sorted(outcomes) == ["joined", "this node is a member of the cluster 'store' already"]
