"""Programs that read a bridge's log in groups: where they begin, how they go on, and the losses reported to them."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any, cast

import pytest
import trio

import iris
from iris.kernel.errors import ConfigError, NotAllowed
from iris.node.node import Node
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member


async def publish(node: Node, numbers: range, topic: str = "orders.new") -> None:
    async with node.confirming(timeout=60) as confirmed:
        for number in numbers:
            await confirmed.publish(topic, number)


async def read(consumer: iris.Consumer, count: int, *, commit: bool = True) -> list[Any]:
    """Return the payloads of so many events."""
    found: list[Any] = []
    with trio.fail_after(60):
        while len(found) < count:
            batch = await anext(consumer)
            found += [event.payload for event in batch]
            if commit:
                await batch.commit()
    return found


async def test_a_group_goes_on_where_it_had_committed(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, member = desk
    await publish(node, range(3000))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        batch = await anext(orders)
        assert [event.payload for event in batch] == list(range(len(batch)))
        assert batch.lag == 3000 - len(batch) == orders.lag
        await batch.commit()
        await anext(orders)  # not committed
    async with node.bridge().consume("orders.>", group="billing") as orders:
        assert await read(orders, 3000 - len(batch)) == list(range(len(batch), 3000))
        assert orders.lag == 0
    assert (await member.report()).lags["billing"] == 0


async def test_events_come_with_all_that_they_were_published_with(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    payloads: list[Any] = [b"bytes", "text", {"n": [1]}, None, b"x" * 300_000]
    for payload in payloads:
        await node.publish_confirmed("orders.new", payload, key="k", headers={"h": "v"})
    async with node.bridge().consume("orders.*", group="billing") as orders:
        found: list[iris.LogEvent] = []
        while len(found) < len(payloads):
            async with await anext(orders) as batch:
                found += batch
        assert [event.payload for event in found] == payloads
        assert {(event.topic, event.key, event.headers["h"], event.sender) for event in found} == {
            ("orders.new", "k", "v", "desk")
        }
        assert [event.offset for event in found] == [0, 1, 2, 3, 4]


async def test_where_a_new_group_begins(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await publish(node, range(5))
    between = datetime.datetime.now(datetime.UTC)
    await publish(node, range(5, 10))
    for group, start, expected in (
        ("a", "earliest", range(10)),
        ("b", between, range(5, 10)),
        ("c", 7, range(7, 10)),
    ):
        async with node.bridge().consume("orders.>", group=group, start=start) as orders:  # type: ignore[arg-type]
            assert await read(orders, len(expected)) == list(expected)
    async with node.bridge().consume("orders.>", group="d", start="latest") as orders:
        with trio.move_on_after(0.3):
            await anext(orders)
        await publish(node, range(10, 12))
        assert await read(orders, 2) == [10, 11]


async def test_a_group_is_replayed_when_that_is_asked_for(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await publish(node, range(10))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        await read(orders, 10)
    async with node.bridge().consume("orders.>", group="billing", start=4, replay=True) as orders:
        assert await read(orders, 6) == list(range(4, 10))
    async with node.bridge().consume("orders.>", group="billing", start=4) as orders:
        with trio.move_on_after(0.3) as scope:
            await anext(orders)
        assert scope.cancelled_caught


async def test_a_second_consumer_waits_and_goes_on_when_the_first_is_gone(
    desk: tuple[Network, Node, BridgeMember],
) -> None:
    network, node, _ = desk
    await publish(node, range(10))
    leave = trio.Event()

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        async with node.bridge().consume("orders.>", group="billing") as orders:
            assert len(await anext(orders)) == 10
            task_status.started()
            await leave.wait()

    async with trio.open_nursery() as nursery, network.open_node("desk") as other:
        await other.wait_for("bridge")
        await nursery.start(hold)
        async with other.bridge().consume("orders.>", group="billing") as waiting:
            with trio.move_on_after(0.3) as scope:
                await anext(waiting)
            assert scope.cancelled_caught
            leave.set()
            assert await read(waiting, 10) == list(range(10))


async def test_a_consumer_goes_on_when_its_bridge_is_restarted_without_repeats(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        node.bridge().consume("orders.>", group="billing") as orders,
    ):
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            await publish(node, range(10))
            assert await read(orders, 10, commit=False) == list(range(10))
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            await publish(node, range(10, 20))
            assert await read(orders, 10) == list(range(10, 20))


async def test_events_on_other_topics_are_left_out_and_count_as_read(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, member = desk
    await publish(node, range(3))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        await read(orders, 3)
        await publish(node, range(50), topic="else.where")
        with trio.fail_after(60):
            while (await member.report()).lags["billing"]:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.1)


async def test_what_was_trimmed_before_it_was_read_is_told(
    desk: tuple[Network, Node, BridgeMember], caplog: pytest.LogCaptureFixture
) -> None:
    _, node, member = desk
    await publish(node, range(20))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        batch = await anext(orders)
        await batch.commit()
        assert len(batch) == 20
    await publish(node, range(20, 30))
    member.store.retainer.trim(0, 25)
    member.refresh()
    async with node.bridge().consume("orders.>", group="billing") as orders:
        batch = await anext(orders)
        assert ([event.payload for event in batch], batch.missed) == ([25, 26, 27, 28, 29], 5)
    assert "5 events of shard" in caplog.text


async def test_a_group_all_of_whose_events_were_trimmed_goes_on(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, member = desk
    await publish(node, range(20))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        await (await anext(orders)).commit()
    await publish(node, range(20, 30))
    member.store.retainer.trim(0, 30)
    member.refresh()
    async with node.bridge().consume("orders.>", group="billing") as orders:
        await publish(node, range(30, 35))
        batch = await anext(orders)
        assert (next(iter(batch)).payload, batch.missed) == (30, 10)


async def test_a_group_that_is_far_behind_commits_each_batch(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await publish(node, range(20_000))
    async with node.bridge().consume("orders.>", group="billing", start="earliest") as orders:
        assert await read(orders, 20_000) == list(range(20_000))


async def test_a_batch_whose_block_fails_is_not_committed(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await publish(node, range(3))
    with pytest.raises(ValueError, match="no good"):
        async with node.bridge().consume("orders.>", group="billing") as orders, await anext(orders):
            raise ValueError("no good")
    async with node.bridge().consume("orders.>", group="billing") as orders:
        assert await read(orders, 3) == [0, 1, 2]


async def test_a_group_belongs_to_the_cluster_that_has_used_it_first(desk: tuple[Network, Node, BridgeMember]) -> None:
    network, node, _ = desk
    await publish(node, range(3))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        await read(orders, 3)
    async with (
        network.open_node("others") as stranger,
        stranger.bridge().consume("orders.>", group="billing") as theirs,
    ):
        await stranger.wait_for("bridge")
        with pytest.raises(NotAllowed, match="belongs to cluster 'desk'"):
            await anext(theirs)


@pytest.mark.parametrize(
    ("topics", "options", "message"),
    [
        ((), {}, "topics are"),
        (("a..b",), {}, "topics are"),
        (("a",), {"group": ""}, "is not a group name"),
        (("a",), {"group": "a/b"}, "is not a group name"),
        (("a",), {"start": "soon"}, "start is 'soon'"),
        (("a",), {"start": -1}, "start is -1"),
    ],
)
async def test_what_cannot_be_consumed_is_an_error(
    topics: tuple[str, ...], options: dict[str, Any], message: str
) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        with pytest.raises(ConfigError, match=message):
            async with node.bridge().consume(*topics, **cast("dict[str, Any]", {"group": "g"} | options)):
                pass


@pytest.mark.parametrize(
    "message", [b"x", {}, {"commit": 3}, {"commit": {"0@x": 1}}, {"commit": {"0": -1}}, {"taken": 99}, {"taken": "1"}]
)
async def test_a_consumer_that_sends_nonsense_is_told_so(
    desk: tuple[Network, Node, BridgeMember], message: Any
) -> None:
    _, node, _ = desk
    terms = {"group": "g", "topics": ["a"], "start": "earliest", "replay": False}
    async with node.open_tunnel("bridge", operation="consume") as tunnel:
        await tunnel.send(terms)
        assert set(await tunnel.receive()) == {"at"}
        await tunnel.send(message)
        with trio.fail_after(60):
            assert (await tunnel.receive())["error"] == "bad_request"


async def test_events_that_have_expired_are_left_out_and_counted(desk: tuple[Network, Node, BridgeMember]) -> None:
    _, node, _ = desk
    await node.publish_confirmed("orders.new", 1, expires=0.0)
    await node.publish_confirmed("orders.new", 2, expires=600.0)
    await node.publish_confirmed("orders.new", 3)
    async with node.bridge().consume("orders.>", group="billing") as orders:
        batch = await anext(orders)
        assert ([event.payload for event in batch], batch.expired) == ([2, 3], 1)


async def test_a_late_commit_does_not_move_its_group_back(desk: tuple[Network, Node, BridgeMember]) -> None:
    """A consumer was cut off with a commit that nobody had confirmed, and commits again behind another one."""
    _, node, member = desk
    await publish(node, range(3000))
    (shard,) = member.states
    async with node.bridge().consume("orders.>", group="billing") as orders:
        await read(orders, 3000)
    terms = {"group": "billing", "topics": ["orders.>"], "start": "earliest", "replay": False, "at": {shard: 1024}}
    async with node.open_tunnel("bridge", operation="consume") as late:
        await late.send(terms)
        assert await late.receive() == {"at": {shard: 3000}}
        await late.send({"commit": {shard: 1024}})
        assert await late.receive() == {"committed": {shard: 1024}}, "so that it waits no longer"
        await late.send({"commit": {shard: 10_000}})
        assert await late.receive() == {"committed": {shard: 10_000}}, "of a log that was put back"
    await publish(node, range(3000, 3005))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        assert await read(orders, 5) == list(range(3000, 3005))


async def test_a_commit_ends_with_the_error_of_a_consumer_that_has_failed_for_good(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        node.bridge().consume("orders.>", group="billing") as orders,
        trio.open_nursery() as nursery,
    ):
        async with open_member(network, tmp_path):
            await node.wait_for("bridge")
            await publish(node, range(3))
            batch = await anext(orders)

        async def commit() -> None:
            with pytest.raises(NotAllowed, match="may not read"):
                await batch.commit()

        nursery.start_soon(commit)
        async with open_member(network, tmp_path, readers=["others"]):
            with pytest.raises(NotAllowed, match="may not read"), trio.fail_after(30):
                await anext(orders)
            with trio.fail_after(1), pytest.raises(NotAllowed, match="may not read"):
                await batch.commit()


@pytest.mark.parametrize("step", [-240.0, 240.0])
async def test_a_clock_that_is_set_lets_no_event_expire(tmp_path: Path, step: float) -> None:
    ahead = 0.0

    def wall_clock() -> float:
        return 1.8e9 + time.monotonic() + ahead

    async with (
        open_network() as network,
        open_member(network, tmp_path, wall_clock=wall_clock),
        network.open_node("desk") as node,
    ):
        await node.publish_confirmed("orders.new", 1, expires=60.0)
        ahead += step
        await node.publish_confirmed("orders.new", 2, expires=60.0)
        await node.publish_confirmed("orders.new", "gone", expires=0.2)
        await trio.sleep(0.25)
        await node.publish_confirmed("orders.new", 3, expires=60.0)
        async with node.bridge().consume("orders.>", group="billing") as orders:
            found: list[iris.LogEvent] = []
            while len(found) < 3:
                found += await anext(orders)
            assert [event.payload for event in found] == [1, 2, 3]
            assert [event.timestamp for event in found] == sorted(event.timestamp for event in found)


async def test_trimmed_events_on_other_topics_are_not_missed(
    desk: tuple[Network, Node, BridgeMember],
) -> None:
    _, node, member = desk
    await publish(node, range(20))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        await read(orders, 20)
    await publish(node, range(20, 25))
    await publish(node, range(500), topic="else.where")
    member.store.retainer.trim(0, 300)
    member.refresh()
    await publish(node, range(25, 27))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        batch = await anext(orders)
        assert ([event.payload for event in batch], batch.missed) == ([25, 26], 5)
        await batch.commit()
    await publish(node, range(500), topic="else.where")
    member.store.retainer.trim(0, 900)
    member.refresh()
    await publish(node, range(27, 28))
    async with node.bridge().consume("orders.>", group="billing") as orders:
        batch = await anext(orders)
        assert ([event.payload for event in batch], batch.missed) == ([27], 0)
