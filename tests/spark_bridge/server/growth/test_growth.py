"""A bridge gets more shards while publishers and readers go on: each event once, and in order by key."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.cli.bridge_log import _generations
from iris.kernel.errors import ConfigError, NotAllowed
from iris.node.node import Node
from iris.patterns.pubsub.interest.shards import ShardMap
from iris.patterns.pubsub.queues import member_stream
from iris.patterns.pubsub.subscribe.subscription import Subscription
from iris.spark_bridge.client.bridge_watch import BridgeWatch
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.promotion import promote
from iris.spark_bridge.errors import BridgeUnreachable, NotCopied, StoreFull
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log import Store
from iris.spark_bridge.log.appender import Appender
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.growth.grow import grow
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.server.successor import reopen
from iris.testing import Network, open_network
from tests.support import growing_bridges
from tests.support.bridge_requests import ask_raw
from tests.support.copies import open_follower
from tests.support.growing_bridges import check_once_and_in_order, read_all

LAST = growing_bridges.KEYS * 4


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
def test_under_load_and_crashes_each_event_is_read_once_and_each_key_in_order(seed: int) -> None:
    growing_bridges.run(seed, seconds=8.0)


@asynccontextmanager
async def open_member(
    network: Network, directory: Path, shard: int, of: int, **options: Any
) -> AsyncIterator[BridgeMember]:
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, topics=["t"], directory=directory / str(shard), shards=[shard], of=of, **options) as member,
    ):
        yield member


async def run_member(
    network: Network,
    directory: Path,
    shard: int,
    of: int,
    waiting: Callable[[str], None] = lambda _: None,
    *,
    min_copies: int = 0,
    task_status: trio.TaskStatus[BridgeMember] = trio.TASK_STATUS_IGNORED,
) -> None:
    async with open_member(network, directory, shard, of, waiting=waiting, min_copies=min_copies) as member:
        task_status.started(member)
        await trio.sleep_forever()


def telling(event: trio.Event) -> Callable[[str], None]:
    """Return what sets an event when a member waits."""

    def tell(_: str) -> None:
        event.set()

    return tell


async def wait_newcomer(nursery: trio.Nursery, network: Network, directory: Path, shard: int, of: int) -> None:
    """Start a member, and wait until it waits."""
    waits = trio.Event()
    nursery.start_soon(run_member, network, directory, shard, of, telling(waits))
    with trio.fail_after(30):
        await waits.wait()


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[Network, BridgeClient, Node, trio.Nursery]]:
    """A network with an operator's client and a publisher."""
    async with (
        open_network() as network,
        network.open_node("bridge") as operator,
        network.open_node("publisher", host="publisher") as publisher,
        trio.open_nursery() as nursery,
    ):
        yield network, BridgeClient(operator, "bridge", patience=30), publisher, nursery
        nursery.cancel_scope.cancel()


async def publish(node: Node, numbers: range) -> None:
    """Publish confirmed events, each key every KEYS events."""
    async with node.confirming(timeout=120) as events:
        for number in numbers:
            await events.publish("t", b"%d" % number, key=f"k{number % growing_bridges.KEYS}")


def moved(before: int, after: int) -> list[int]:
    """Return the numbers of the keys that belong to another shard when there are more."""
    maps = ShardMap(range(before)), ShardMap(range(after))
    return [n for n in range(growing_bridges.KEYS) if len({one.shard_of(f"k{n}", "", "t") for one in maps}) == 2]


def flat(found: dict[int, list[tuple[str, int]]]) -> list[tuple[str, int]]:
    return [event for shard in sorted(found) for event in found[shard]]


async def test_what_was_stored_and_not_confirmed_is_a_repeat_in_the_new_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene() as (network, client, publisher, nursery):
        member = await nursery.start(run_member, network, tmp_path, 0, 1)
        with monkeypatch.context() as patch:

            async def forget(*_: object) -> None:
                await trio.lowlevel.checkpoint()

            patch.setattr(Subscription, "_confirm_ranges", forget)
            nursery.start_soon(publish, publisher, range(LAST))
            with trio.fail_after(30):
                while member.statistics().stored < LAST:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.01)
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        done = await grow(client, 2)
        assert (done.before, done.of, list(done.marks.values())) == (1, 2, [LAST])
        await publish(publisher, range(LAST, 2 * LAST))
        found = await read_all(client)
        check_once_and_in_order(flat(found), 2 * LAST)
        assert len(found[0]) > LAST
        assert {key for key, _ in found[1]} == {f"k{number}" for number in moved(1, 2)}


async def test_a_growth_that_was_interrupted_is_finished_by_another_one(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        async with AsyncExitStack() as stack:
            for shard in (0, 1):
                await stack.enter_async_context(open_member(network, tmp_path, shard, 2))
            await publish(publisher, range(LAST))
            await ask_raw(client, "divide", {"of": 3}, "bridge.0")
            with pytest.raises(ConfigError, match="has begun to grow to 3 shards, and shard 1 has not: finish that"):
                await grow(client, 4)
            with pytest.raises(ConfigError, match=r"nobody waits to have shard 2 of 3 of bridge 'bridge': start 'iris"):
                await grow(client, 3, patience=0.1)
            # What is left of the former generation goes on, and what moves waits.
            stays, moves = min({*range(growing_bridges.KEYS)} - {*moved(2, 3)}), moved(2, 3)[0]
            await publisher.publish_confirmed("t", b"%d" % LAST, key=f"k{stays}", timeout=10)
            with pytest.raises(Exception, match="no member of 'bridge' has the shard to which this event on 't'"):
                await publisher.publish_confirmed("t", b"x", key=f"k{moves}", timeout=1)
        for shard in (0, 1):  # both are started again as before, and one of them has begun
            await nursery.start(run_member, network, tmp_path, shard, 2)
        await wait_newcomer(nursery, network, tmp_path, 2, 3)
        for _ in range(2):
            assert (await grow(client, 3)).of == 3
        shards = await client.shards()
        marks = " and ".join(f"{shard.id} at {shard.marks[3]}" for shard in shards[:2])
        assert [*_generations(shards)] == [f"grown from 2 to 3 shards, which begin behind {marks}"]
        await publisher.publish_confirmed("t", b"%d" % (LAST + 1), key=f"k{moves}", timeout=10)
        found = await read_all(client)
        check_once_and_in_order(flat(found), LAST + 2)
        assert found[2] == [(f"k{moves}", LAST + 1)]


async def test_a_publisher_that_was_away_meanwhile_goes_on_in_order(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        for shard in (0, 1):
            await nursery.start(run_member, network, tmp_path, shard, 2)
        await publish(publisher, range(LAST))
        network.memory.partition(["publisher"])
        nursery.start_soon(publish, publisher, range(LAST, 2 * LAST))
        await wait_newcomer(nursery, network, tmp_path, 2, 3)
        await grow(client, 3)
        await trio.sleep(3)
        network.memory.heal()
        await publish(publisher, range(2 * LAST, 3 * LAST))
        with trio.fail_after(60):
            while sum(map(len, (found := await read_all(client)).values())) < 3 * LAST:  # noqa: ASYNC110
                await trio.sleep(0.1)
        check_once_and_in_order(flat(found), 3 * LAST)
        assert all(number >= LAST for _, number in found[2])


async def test_a_promoted_copy_goes_on_in_the_generation_that_its_primary_had_begun(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        async with open_follower(network, tmp_path / "copy") as copy:
            async with open_member(network, tmp_path, 0, 1, min_copies=1):
                await publish(publisher, range(LAST))
                await wait_newcomer(nursery, network, tmp_path, 1, 2)
                marks = (await grow(client, 2)).marks
                await publish(publisher, range(LAST, 2 * LAST))
            await promote(client.node, "bridge", 0, min_copies=0)
            settings = await copy.wait_promoted()
        assert settings.of == 1, "as it was started"
        async with (
            network.open_node("bridge") as node,
            reopen(node, "bridge", tmp_path / "copy", settings, waiting=print),
        ):
            await publish(publisher, range(2 * LAST, 3 * LAST))
            check_once_and_in_order(flat(await read_all(client)), 3 * LAST)
            assert (await grow(client, 2)).marks == marks


async def test_a_queue_hands_out_the_jobs_of_a_key_in_order(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        await nursery.start(run_member, network, tmp_path, 0, 1)
        await publish(publisher, range(LAST))
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        await grow(client, 2)
        await publish(publisher, range(LAST, 2 * LAST))
        done: list[tuple[str, int]] = []
        async with network.open_node("worker") as node, node.bridge().queue("t") as queue:
            with trio.fail_after(120):
                async for job in queue.receive(limit=16):
                    async with job:
                        done.append((str(job.key), int(job.payload)))
                    if len(done) == 2 * LAST:
                        break
        check_once_and_in_order(done, 2 * LAST)


async def test_a_new_shard_gives_a_group_nothing_until_it_has_committed_what_comes_before(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        await nursery.start(run_member, network, tmp_path, 0, 1)
        await publish(publisher, range(LAST))
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        await grow(client, 2)
        await publish(publisher, range(LAST, 2 * LAST))
        async with publisher.bridge().consume("t", group="g", start="earliest") as batches:
            held = [await anext(batches)]
            with trio.move_on_after(2):
                while True:
                    held.append(await anext(batches))
            received = [(str(event.key), int(event.payload)) for batch in held for event in batch]
            assert {batch.shard.partition("@")[0] for batch in held} == {"0"}
            assert len(received) > LAST
            for batch in held:
                await batch.commit()
            with trio.fail_after(30):
                while len(received) < 2 * LAST:
                    received += [(str(event.key), int(event.payload)) for event in await anext(batches)]
        check_once_and_in_order(received, 2 * LAST)


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_query_gets_nothing_of_a_new_shard_until_it_is_at_the_marks(tmp_path: Path, limit: int | None) -> None:
    async with scene() as (network, client, publisher, nursery):
        await nursery.start(run_member, network, tmp_path, 0, 1)
        await publish(publisher, range(LAST))
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        ((old, mark),) = (await grow(client, 2)).marks.items()
        await publish(publisher, range(LAST, 2 * LAST))
        watch = BridgeWatch(None)
        await watch.look(client)
        (new,) = watch.extents.keys() - {old}
        for at, upto in ((0, 0), (mark - 1, 0), (mark, watch.extents[new].next)):
            await watch.wait(client, {old: at, new: 0}, 0.0, limit)
            assert watch.extents[new].next == upto, at


async def test_a_group_that_reads_what_is_new_has_all_that_is_new_in_a_new_shard_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_stream, "_LOOK", 0.5)
    async with scene() as (network, client, publisher, nursery):
        await nursery.start(run_member, network, tmp_path, 0, 1)
        await publish(publisher, range(LAST))
        received: list[tuple[str, int]] = []
        began = trio.Event()

        async def read() -> None:
            async with publisher.bridge().consume("t", group="g", start="latest") as batches:
                async for batch in batches:
                    async with batch:
                        received.extend((str(event.key), int(event.payload) - LAST) for event in batch)
                    began.set()

        nursery.start_soon(read)
        with trio.fail_after(60):
            number = LAST
            while not began.is_set():
                await publish(publisher, range(number, number + growing_bridges.KEYS))
                number += growing_bridges.KEYS
                await trio.sleep(0.1)
            first = min(number for _, number in received)
            await wait_newcomer(nursery, network, tmp_path, 1, 2)
            await grow(client, 2)
            await publish(publisher, range(number, number + LAST))
            while len(received) < number - first:  # noqa: ASYNC110 -- a list
                await trio.sleep(0.1)
        check_once_and_in_order([(key, number - first) for key, number in received], number - first)


async def test_a_member_that_comes_a_moment_later_is_waited_for(tmp_path: Path) -> None:
    async with scene() as (network, client, _publisher, nursery):
        await nursery.start(run_member, network, tmp_path, 0, 1)
        async with trio.open_nursery() as waiting:
            waiting.start_soon(partial(grow, client, 2, patience=30))
            await wait_newcomer(nursery, network, tmp_path, 1, 2)
        assert next(iter(await client.shards())).of == 2


async def test_what_cannot_grow_is_told_why(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        async with network.open_node("bridge") as node, open_bridge(node, topics=["t"], directory=tmp_path / "whole"):
            with pytest.raises(ConfigError, match="do not divide its events: start them with --of"):
                await grow(client, 2)
        async with open_member(network, tmp_path, 0, 2):
            with pytest.raises(ConfigError, match="shard 1 of bridge 'bridge' has no member that is there: start it"):
                await grow(client, 3)
        for shard in (0, 1):
            await nursery.start(run_member, network, tmp_path, shard, 2)
        with pytest.raises(ConfigError, match="has 2 shards and only grows: give 2 to 512"):
            await grow(client, 1)
        with pytest.raises(NotAllowed, match="only nodes of cluster 'bridge' may change its log"):
            await ask_raw(BridgeClient(publisher, "bridge", patience=5), "divide", {"of": 3}, "bridge.0")
        with pytest.raises(ConfigError, match=r"start all members alike|shard 1 of .* is at node .* already"):
            async with open_member(network, tmp_path / "other", 1, 3):
                pass
        await wait_newcomer(nursery, network, tmp_path, 2, 3)
        with pytest.raises(ConfigError, match="waits until bridge 'bridge' has 3 shards, and not 4: start all new"):
            await grow(client, 4)
        assert [shard.of for shard in await client.shards()] == [2, 2], "nothing has begun"


async def test_a_job_of_a_key_that_has_moved_leaves_its_dead_letter_all_the_same(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        member = await nursery.start(run_member, network, tmp_path, 0, 1)
        key = f"k{moved(1, 2)[0]}"
        await publisher.publish_confirmed("t", b"1", key=key, timeout=10)
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        await grow(client, 2)
        async with network.open_node("worker") as node, node.bridge().queue("t", attempts=1) as queue:
            with trio.fail_after(60):
                async for job in queue.receive(limit=1):
                    job.fail("broken")
                    break
                while member.statistics().stored != 2:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.1)
        state = next(iter(member.states.values()))
        (chunk,) = member.store.reader.read(0, state.epoch, 1, 2, max_bytes=1 << 20)
        (row,) = decode_events(chunk.data).to_pylist()
        assert (row["topic"], row["key"], row["value"]) == ("t.dead", key.encode(), b"1")


async def test_a_tunnel_that_was_open_during_the_growth_is_stored_in_full(tmp_path: Path) -> None:
    async with (
        scene() as (network, client, publisher, nursery),
        open_member(network, tmp_path, 0, 1, clusters=["orders"]) as member,
        AsyncExitStack() as stack,
    ):
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        await publisher.wait_for("orders")
        tunnels = [await stack.enter_async_context(publisher.open_tunnel("orders")) for _ in range(8)]
        for tunnel in tunnels:
            await tunnel.send(b"before")
        with trio.fail_after(60):
            while member.statistics().stored < len(tunnels):  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.1)
        await grow(client, 2)
        for tunnel in tunnels:
            await tunnel.send(b"behind")
            await tunnel.send_eof()
            assert [count async for count in tunnel] == [2]
        assert member.statistics().stored == 2 * len(tunnels)
        assert not member.statistics().misrouted


async def test_readers_go_on_when_the_log_of_an_old_shard_is_lost(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        async with open_member(network, tmp_path, 0, 1):
            await publish(publisher, range(LAST))
            await wait_newcomer(nursery, network, tmp_path, 1, 2)
            await grow(client, 2)
            await publish(publisher, range(LAST, 2 * LAST))
        shutil.rmtree(tmp_path / "0")
        await nursery.start(run_member, network, tmp_path, 0, 2)
        await publish(publisher, range(2 * LAST, 3 * LAST))
        wanted = sum(number % growing_bridges.KEYS in moved(1, 2) for number in range(LAST, 3 * LAST))
        received: list[int] = []
        with trio.fail_after(60):
            async with publisher.bridge().consume("t", group="g", start="earliest") as batches:
                async for batch in batches:
                    async with batch:
                        received += [int(e.payload) for e in batch if str(e.key) in {f"k{n}" for n in moved(1, 2)}]
                    if len(received) == wanted:
                        break


async def test_a_group_that_is_dropped_and_begins_again_waits_again(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        members = [await nursery.start(run_member, network, tmp_path, 0, 1)]
        await publish(publisher, range(LAST))
        waits = trio.Event()

        async def be_newcomer() -> None:
            async with open_member(network, tmp_path, 1, 2, waiting=telling(waits)) as member:
                members.append(member)
                await trio.sleep_forever()

        nursery.start_soon(be_newcomer)
        with trio.fail_after(60):
            await waits.wait()
            await grow(client, 2)
            await publish(publisher, range(LAST, 2 * LAST))
            received: list[tuple[str, int]] = []
            async with publisher.bridge().consume("t", group="g", start="earliest") as batches:
                async for batch in batches:
                    async with batch:
                        received += [(str(event.key), int(event.payload)) for event in batch]
                    if len(received) == 2 * LAST:
                        break
        check_once_and_in_order(received, 2 * LAST)
        assert members[1].has_read_parents("g")
        for address in ("bridge.0", "bridge.1"):
            assert await ask_raw(client, "drop", {"group": "g"}, address)
        assert not members[1].has_read_parents("g")


@pytest.mark.parametrize("reader", ["group", "queue"])
async def test_what_was_trimmed_in_an_old_shard_is_not_waited_for(tmp_path: Path, reader: str) -> None:
    async with scene() as (network, client, publisher, nursery):
        async with open_member(network, tmp_path, 0, 1) as member:
            await publish(publisher, range(LAST))
            (state,) = member.states.values()
            if reader == "queue":
                assert (await ask_raw(client, "queue", {"group": "queue/t"}, "bridge.0"))["waiting"] == LAST
            else:
                await ask_raw(client, "pin", {"group": "g", "start": {state.id: 0}}, "bridge.0")
            group = "queue/t" if reader == "queue" else "g"
            await ask_raw(client, "transfer", {"group": group, "to": "publisher"}, "bridge.0")
        await nursery.start(run_member, network, tmp_path, 0, 1)
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        await grow(client, 2)
        assert await ask_raw(client, "trim", {"shard": state.id, "before": LAST}, "bridge.0") == LAST
        moves = moved(1, 2)[0]
        await publisher.publish_confirmed("t", b"%d" % LAST, key=f"k{moves}", timeout=10)
        with trio.fail_after(60):
            if reader == "queue":
                async with publisher.bridge().queue("t") as queue:
                    async for job in queue.receive(limit=1):
                        async with job:
                            assert job.payload == b"%d" % LAST
                        break
            else:
                async with publisher.bridge().consume("t", group="g", start="earliest") as batches:
                    async for batch in batches:
                        async with batch:
                            assert [event.payload for event in batch] == [b"%d" % LAST]
                        break


async def test_a_group_of_what_is_new_begins_with_the_new_shards_while_an_old_one_has_had_no_event(
    tmp_path: Path,
) -> None:
    async with scene() as (network, client, publisher, nursery):
        await nursery.start(run_member, network, tmp_path, 0, 1)
        await publish(publisher, range(LAST))
        await wait_newcomer(nursery, network, tmp_path, 1, 2)
        await grow(client, 2)
        moves = moved(1, 2)[0]
        await publisher.publish_confirmed("t", b"old", key=f"k{moves}", timeout=10)
        received: list[object] = []
        with trio.fail_after(60):
            async with publisher.bridge().consume("t", group="g", start="latest") as batches:

                async def go_on() -> None:
                    while not received:
                        await publisher.publish_confirmed("t", b"new", key=f"k{moves}", timeout=10)
                        await trio.sleep(0.5)

                nursery.start_soon(go_on)
                async for batch in batches:
                    async with batch:
                        received += [event.payload for event in batch]
                    break
        assert received[0] == b"old"


async def test_growths_at_the_same_time_are_one(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        for shard in (0, 1):
            await nursery.start(run_member, network, tmp_path, shard, 2)
        await publish(publisher, range(LAST))
        await wait_newcomer(nursery, network, tmp_path, 2, 3)
        done: list[object] = []

        async def run(of: int) -> None:
            try:
                done.append((await grow(client, of)).marks)
            except ConfigError as error:
                done.append(str(error)[:4])

        async with trio.open_nursery() as growing_nursery:
            growing_nursery.start_soon(publish, publisher, range(LAST, 2 * LAST))
            for of in (3, 3, 4, 3):
                growing_nursery.start_soon(run, of)
        assert done.count("node") == 1, "it has to wait for those that wait for another number"
        marks = [one for one in done if one != "node"]
        assert marks == marks[:1] * 3
        assert (await grow(client, 3)).marks == marks[0]
        check_once_and_in_order(flat(await read_all(client)), 2 * LAST)


@pytest.mark.parametrize("step", ["merge_windows", "put_division"])
async def test_a_new_member_that_dies_while_it_takes_over_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with scene() as (network, client, publisher, nursery):
        member = await nursery.start(run_member, network, tmp_path, 0, 1)
        with monkeypatch.context() as patch:

            async def forget(*_: object) -> None:
                await trio.lowlevel.checkpoint()

            patch.setattr(Subscription, "_confirm_ranges", forget)
            nursery.start_soon(publish, publisher, range(LAST))
            with trio.fail_after(30):
                while member.statistics().stored < LAST:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.01)
        waits, dies = trio.Event(), trio.Event()

        async def be_newcomer() -> None:
            with pytest.raises(StoreFull):
                async with open_member(network, tmp_path, 1, 2, waiting=telling(waits)):
                    raise AssertionError
            dies.set()

        nursery.start_soon(be_newcomer)
        with trio.fail_after(60):
            await waits.wait()

            def die(*_: object, **__: object) -> None:
                raise StoreFull("no room")

            with monkeypatch.context() as patch:
                if step == "merge_windows":
                    patch.setattr(Appender if step == "merge_windows" else Store, step, die)
                await ask_raw(client, "divide", {"of": 2}, "bridge.0")
                patch.setattr(Appender if step == "merge_windows" else Store, step, die)
                await dies.wait()
            await nursery.start(run_member, network, tmp_path, 1, 2)
        await publish(publisher, range(LAST, 2 * LAST))
        check_once_and_in_order(flat(await read_all(client)), 2 * LAST)


async def test_a_mark_that_copies_do_not_have_is_told_to_nobody(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        impatient = BridgeClient(client.node, "bridge", patience=3)
        async with open_follower(network, tmp_path / "copy"):
            await nursery.start(partial(run_member, min_copies=1), network, tmp_path, 0, 1)
            await publish(publisher, range(LAST))
            await wait_newcomer(nursery, network, tmp_path, 1, 2)
        with pytest.raises((NotCopied, BridgeUnreachable)):
            await grow(impatient, 2)
        (shard,) = await client.shards()
        assert (shard.of, dict(shard.marks)) == (1, {})
        nursery.start_soon(publish, publisher, range(LAST, 2 * LAST))
        async with open_follower(network, tmp_path / "copy"):
            assert (await grow(client, 2)).of == 2
            with trio.fail_after(60):
                while sum(map(len, (found := await read_all(client)).values())) < 2 * LAST:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            check_once_and_in_order(flat(found), 2 * LAST)


async def test_a_copy_that_is_promoted_without_the_mark_of_its_primary_gets_one_of_its_own(tmp_path: Path) -> None:
    async with scene() as (network, client, publisher, nursery):
        impatient = BridgeClient(client.node, "bridge", patience=3)
        async with open_member(network, tmp_path, 0, 1, min_copies=1) as member:
            async with open_follower(network, tmp_path / "copy"):
                await publish(publisher, range(LAST))
            await wait_newcomer(nursery, network, tmp_path, 1, 2)
            nursery.start_soon(publish, publisher, range(LAST, 2 * LAST))  # nothing of it is confirmed here
            with trio.fail_after(60):
                while member.statistics().stored == LAST:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.01)
            with pytest.raises((NotCopied, BridgeUnreachable)):
                await grow(impatient, 2)
        async with open_follower(network, tmp_path / "copy") as copy:
            await promote(client.node, "bridge", 0, min_copies=0)
            settings = await copy.wait_promoted()
        async with (
            network.open_node("bridge") as node,
            reopen(node, "bridge", tmp_path / "copy", settings, waiting=print),
        ):
            (shard,) = await client.shards()
            assert shard.of == 1
            assert (await grow(client, 2)).of == 2
            with trio.fail_after(60):
                while sum(map(len, (found := await read_all(client)).values())) < 2 * LAST:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            check_once_and_in_order(flat(found), 2 * LAST)
