"""Several members of one bridge: each event is in one log, once, if members die, too; nobody takes another's place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.errors import ConfigError, RequestTimeout
from iris.patterns.pubsub.interest.shards import ShardMap
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import BridgeUnreachable
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.arrivals import stored
from tests.support.bridge_members import open_member
from tests.support.bridges import BridgeProcess
from tests.support.staged import part, written
from tests.support.waiting import wait_until


@asynccontextmanager
async def open_members(
    network: Network, directory: Path, count: int, **options: Any
) -> AsyncIterator[list[BridgeMember]]:
    """Open so many members, each with one shard."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_member(network, directory / str(n), shards=[n], of=count, **options))
            for n in range(count)
        ]


async def values_in_log(client: BridgeClient) -> list[bytes]:
    """Return what all shards of a bridge hold."""
    found: list[bytes] = []
    for shard in await client.shards():
        if shard.next > shard.earliest:
            async for chunks in client.read(shard.address, shard.id, shard.earliest, shard.next):
                for chunk in chunks:
                    found += decode_events(chunk.data).column("value").to_pylist()
    return found


# -- dividing the events -------------------------------------------------------------------------------------


async def test_each_event_is_in_the_log_of_one_member(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_members(network, tmp_path, 3) as members,
        network.open_node("publisher") as publisher,
        network.open_node("another") as another,
    ):
        for node in (publisher, another):
            async with node.confirming(timeout=60) as events:
                for number in range(300):
                    await events.publish(f"t.{number % 5}", b"%d" % number, key=str(number % 50))
        logs = [stored(member.store, shard) for shard, member in enumerate(members)]
        assert all(logs)
        for number in range(50):  # a key is in one log, no matter who publishes it
            assert sum(b"%d" % number in log for log in logs) == 1
        assert sorted(value for log in logs for value in log) == sorted(b"%d" % n for n in range(300) for _ in "ab")
        assert sum(member.statistics().misrouted for member in members) == 0
        assert sorted(await values_in_log(BridgeClient(publisher, "bridge", patience=5))) == sorted(
            value for log in logs for value in log
        )


async def test_several_patterns_store_an_event_once(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_members(network, tmp_path, 2, topics=["a.>", "a.b", "*.b"]) as members,
        network.open_node("publisher") as publisher,
    ):
        for number in range(40):
            await publisher.publish_confirmed("a.b", b"%d" % number, key=str(number))
        logs = [stored(member.store, shard) for shard, member in enumerate(members)]
        assert sorted(value for log in logs for value in log) == sorted(b"%d" % n for n in range(40))


async def test_members_are_asked_for_their_address_when_others_are_there_than_before(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("spark") as node:

        def asked() -> int:
            return node.statistics().requests.sent

        async with open_member(network, tmp_path / "0", topics=["t"], shards=[0], member="first"):
            client = BridgeClient(node, "bridge", patience=5)
            assert await client.addresses() == ("bridge.first",)
            before = asked()
            for _ in range(3):
                assert await client.addresses() == ("bridge.first",)
            assert asked() == before
            async with open_member(network, tmp_path / "1", topics=["t"], shards=[1], member="second"):
                await node.wait_for("bridge", 2)
                assert await client.addresses() == ("bridge.first", "bridge.second")
                assert asked() == before + 2
        # The same log in another process is another member.
        async with (
            open_member(network, tmp_path / "0", topics=["t"], shards=[0], member="third"),
            open_member(network, tmp_path / "1", topics=["t"], shards=[1], member="second"),
        ):
            assert await client.addresses() == ("bridge.second", "bridge.third")


async def test_broadcasts_are_stored_by_one_member_and_tunnels_where_they_end(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_members(network, tmp_path, 2, topics=[], clusters=["orders"]) as members,
        network.open_node("sender") as sender,
    ):
        await sender.wait_for("orders")
        for number in range(5):
            await sender.broadcast("orders", b"%d" % number)
        for _ in range(4):
            async with sender.open_tunnel("orders") as tunnel:
                await tunnel.send(b"tunnel")
                await tunnel.send_eof()
                assert await tunnel.receive() == 1
        await wait_until(lambda: sum(member.statistics().stored for member in members) >= 9)
        logs = [stored(member.store, shard) for shard, member in enumerate(members)]
        assert sorted(value for log in logs for value in log) == [b"0", b"1", b"2", b"3", b"4"] + [b"tunnel"] * 4
        assert [b"0", b"1", b"2", b"3", b"4"] in [[value for value in log if value != b"tunnel"] for log in logs]


async def test_while_a_member_is_away_its_events_wait_and_readers_do(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path / "0", topics=[">"], shards=[0], of=2) as first,
        network.open_node("publisher") as publisher,
    ):
        client = BridgeClient(publisher, "bridge", patience=0.2)
        with pytest.raises(BridgeUnreachable, match="shard 1 has no member: start the one that has its log"):
            await client.shards()
        outcomes = [ShardMap((0, 1)).shard_of(key, publisher.id, "t") == 0 for key in "abcdef"]
        assert set(outcomes) == {True, False}
        for key, good in zip("abcdef", outcomes, strict=True):
            if good:
                await publisher.publish_confirmed("t", key.encode(), key=key, timeout=60)
            else:
                with pytest.raises(RequestTimeout):
                    await publisher.publish_confirmed("t", key.encode(), key=key, timeout=0.2)
        assert stored(first.store) == [key.encode() for key, good in zip("abcdef", outcomes, strict=True) if good]
        async with open_member(network, tmp_path / "1", topics=[">"], shards=[1], of=2) as second:
            for key, good in zip("abcdef", outcomes, strict=True):
                if not good:
                    await publisher.publish_confirmed("t", key.encode(), key=key)
            assert sorted(stored(second.store, 1) + stored(first.store)) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_what_spark_writes_is_in_the_log_once_whoever_has_the_shard_of_its_key(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        open_bridge(node, directory=tmp_path / "0", topics=[">"], shards=[0], of=2) as first,
        open_member(network, tmp_path / "1", topics=[">"], shards=[1], of=2) as second,
        network.open_node("spark") as spark,
    ):
        client = BridgeClient(spark, "bridge", patience=5)
        for number, key in enumerate("abcdefgh"):
            await client.stage("bridge.0", part(number), written([f"row {key}"], key=key))
        await client.commit("bridge.0", "q", 0, [part(number) for number in range(8)])
        for key in "abcdefgh":  # links keep the order: when these are stored, what was sent before has arrived
            await node.publish_confirmed("out.x", key.encode(), key=key, timeout=60)
        logs = [stored(first.store), stored(second.store, 1)]
        assert sorted(logs[0] + logs[1]) == sorted(f"{row}{key}".encode() for key in "abcdefgh" for row in ("", "row "))
        assert logs[1], "what a member publishes for others than Spark goes where its key belongs"


async def test_a_job_that_spark_wrote_leaves_its_dead_letter_whoever_has_the_shard_of_its_key(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path / "0", topics=[">"], shards=[0], of=2),
        open_member(network, tmp_path / "1", topics=[">"], shards=[1], of=2),
        network.open_node("desk") as desk,
    ):
        client = BridgeClient(desk, "bridge", patience=5)
        for number, key in enumerate("abcdefgh"):
            await client.stage("bridge.0", part(number), written([key], topic="jobs", key=key))
        await client.commit("bridge.0", "q", 0, [part(number) for number in range(8)])
        letters: list[bytes] = []
        with trio.fail_after(60):
            async with desk.bridge().queue("jobs", attempts=1) as jobs:
                taker = jobs.receive(8)
                for _ in range(8):
                    (await anext(taker)).fail("poison")
                async with desk.bridge().consume("jobs.dead", group="letters") as events:
                    while len(letters) < 8:
                        async with await anext(events) as batch:
                            letters += [event.payload for event in batch]
        assert sorted(letters) == [key.encode() for key in "abcdefgh"]


# -- nobody is in another's place ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "new", "message"),
    [
        ({}, {}, "shard 0 of bridge 'bridge' is at node .* already"),
        ({"shards": [0, 1]}, {"shards": [1, 2], "member": "b"}, "shard 1 of bridge 'bridge' is at node"),
        ({"shards": [0], "of": 2}, {"shards": [0], "of": 2, "member": "b"}, "shard 0 of bridge 'bridge' is at node"),
        ({"shards": [0], "of": 2}, {"shards": [1]}, "divides the events among 2 shards, and this one stores all"),
        ({"shards": [0], "of": 2}, {"shards": [1], "of": 3}, "among 2 shards, and this one divides .* among 3"),
        (
            {},
            {"shards": [1], "member": "b"},
            "one of the two has no name of its own: start each with",
        ),
        ({"member": "a"}, {"shards": [1]}, "has another member, node .* has no name of its own"),
        ({"member": "a"}, {"shards": [1], "member": "a"}, "is reached as 'bridge.a' already"),
    ],
)
async def test_a_bridge_that_would_take_anothers_place_is_refused(
    tmp_path: Path, there: dict[str, Any], new: dict[str, Any], message: str
) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path / "there", topics=["t"], **there) as first,
        network.open_node("publisher") as publisher,
    ):
        with pytest.raises(ConfigError, match=message):
            async with open_member(network, tmp_path / "new", topics=["t"], **new):
                pass
        assert not (tmp_path / "new").exists(), "it has left nothing behind"
        if "of" not in there:
            await publisher.publish_confirmed("t", b"x", timeout=60)
            assert first.statistics().stored == 1


async def test_of_two_that_start_at_once_at_least_one_gives_way(tmp_path: Path) -> None:
    ended: list[str] = []
    async with (
        open_network() as network,
        network.open_node("bridge") as one,
        network.open_node("bridge") as other,
        trio.open_nursery() as nursery,
    ):

        async def serve(node: iris.Node) -> None:
            try:
                async with open_bridge(node, topics=["t"], directory=tmp_path / node.id):
                    await trio.sleep_forever()
            except ConfigError:
                ended.append(node.id)
                nursery.cancel_scope.cancel()

        nursery.start_soon(serve, one)
        nursery.start_soon(serve, other)
        with trio.fail_after(60):
            await trio.sleep_forever()
    # Which of them it is also depends on who looked when: one that sees the other before it joins gives way.
    assert len(ended) in (1, 2)


async def test_bridges_that_meet_when_a_network_is_whole_again_are_not_both_kept(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge", host="a") as one,
        network.open_node("bridge", host="b") as other,
    ):
        network.memory.partition("a", "b")
        smaller, greater = sorted((one, other), key=lambda node: node.id)

        async def serve_and_meet() -> None:
            async with open_bridge(greater, topics=["t"], directory=tmp_path / "greater"):
                network.memory.heal()
                with trio.fail_after(60):
                    await trio.sleep_forever()

        async with open_bridge(smaller, topics=["t"], directory=tmp_path / "smaller"):
            with pytest.raises(ConfigError, match=f"shard 0 of bridge 'bridge' is at node {smaller.id} already"):
                await serve_and_meet()


async def test_another_service_under_the_bridges_name_is_told_from_a_member(tmp_path: Path) -> None:
    service = iris.Service("bridge")
    async with open_network() as network, network.open_node("bridge") as node, node.join("bridge", service):
        with pytest.raises(BridgeUnreachable, match="does not say which shards it has"):
            async with open_member(network, tmp_path, topics=["t"]):
                pass


# -- processes -------------------------------------------------------------------------------------------------

_MEMBERS = 3
_EVENTS = 6000


async def _publish(members: list[BridgeProcess]) -> int:
    """Publish events of all shards, while a member is killed and comes back; return how many were confirmed."""
    async with iris.open_node("publisher") as node:
        client = BridgeClient(node, "bridge", patience=60)
        await client.shards()  # all members are there
        async with node.confirming(timeout=60) as events:
            for number in range(_EVENTS):
                if number == _EVENTS // 3:
                    while not events.confirmed:  # noqa: ASYNC110 -- what is waited for has no event
                        await trio.sleep(0.001)
                    members[1].kill()
                if number == 2 * _EVENTS // 3:
                    await trio.to_thread.run_sync(members[1].start)
                await events.publish("t", b"%d" % number, key=str(number % 97))
        return events.confirmed


async def _read() -> list[bytes]:
    async with iris.open_node("reader") as node:
        return await values_in_log(BridgeClient(node, "bridge", patience=60))


def test_a_member_that_is_killed_and_comes_back_loses_nothing_and_doubles_nothing(realm: Path, tmp_path: Path) -> None:
    members = [BridgeProcess(tmp_path / str(n), "--shard", str(n), "--of", str(_MEMBERS)) for n in range(_MEMBERS)]
    try:
        for member in members:
            member.start()
        assert trio.run(_publish, members) == _EVENTS
        found = trio.run(_read)
        assert sorted(map(int, found)) == list(range(_EVENTS))
    finally:
        for member in members:
            member.kill()
