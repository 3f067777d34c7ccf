"""Members that do not divide the events are counted all the same: no reader gets half of a bridge without an error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from iris.kernel.errors import ConfigError, NotAllowed
from iris.spark_bridge.admin import drop_shard, read_events
from iris.spark_bridge.client.bridge_watch import BridgeWatch
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import BridgeUnreachable, StoreFull
from iris.spark_bridge.log.store import Store
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.arrivals import make_store
from tests.support.waiting import wait_until


@asynccontextmanager
async def open_member(network: Network, directory: Path, shard: int, **options: Any) -> AsyncIterator[BridgeMember]:
    """A member that stores what is published on a topic of its own."""
    chosen: dict[str, Any] = {"topics": [f"t.{shard}"], "shards": [shard], "member": f"m{shard}"}
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, **(chosen | options), directory=directory / str(shard)) as member,
    ):
        yield member


async def until_known(*members: BridgeMember, shards: set[int]) -> None:
    await wait_until(lambda: all(set(member.known) == shards for member in members))


MISSING = r"shard 1 has no member, and was at 'bridge.m1' last: start the one that has its log; .*drop --shard 1'"


async def test_a_read_fails_while_a_member_is_away_that_the_others_have_met(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("reader") as reader:
        client = BridgeClient(reader, "bridge", patience=0.5)
        async with open_member(network, tmp_path, 0) as first:
            assert [shard.number for shard in await client.shards()] == [0]
            async with open_member(network, tmp_path, 1) as second:
                await until_known(first, second, shards={0, 1})
                await reader.publish_confirmed("t.1", b"x")
            for attempt in (client.shards, partial(BridgeWatch(None).look, client), client.addresses):
                with pytest.raises(BridgeUnreachable, match=MISSING):
                    await attempt()
            with pytest.raises(BridgeUnreachable, match=MISSING):
                [event async for event in read_events(client)]
            async with open_member(network, tmp_path, 1):
                patient = BridgeClient(reader, "bridge", patience=20)
                assert [event["value"] async for event in read_events(patient)] == ["x"]


@pytest.mark.parametrize("stays", [0, 1])
async def test_whom_a_member_has_met_it_knows_after_a_restart(tmp_path: Path, stays: int) -> None:
    async with open_network() as network, network.open_node("reader") as reader:
        client = BridgeClient(reader, "bridge", patience=0.5)
        async with open_member(network, tmp_path, 0) as first, open_member(network, tmp_path, 1) as second:
            await until_known(first, second, shards={0, 1})
        async with open_member(network, tmp_path, stays):
            with pytest.raises(
                BridgeUnreachable, match=f"shard {1 - stays} has no member, and was at 'bridge.m{1 - stays}' last"
            ):
                await client.shards()


async def test_a_shard_of_a_log_that_its_member_was_not_started_with_is_missed(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("reader") as reader:
        client = BridgeClient(reader, "bridge", patience=0.5)
        async with open_member(network, tmp_path, 0, shards=[0, 1]):
            assert len(await client.shards()) == 2
        async with open_member(network, tmp_path, 0, shards=[0]):
            with pytest.raises(BridgeUnreachable, match=r"shard 1 has no member, and was at 'bridge\.m0' last"):
                await client.shards()


async def test_members_that_divide_the_events_are_not_fewer_than_before(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("reader") as reader:
        client = BridgeClient(reader, "bridge", patience=0.5)
        async with (
            open_member(network, tmp_path, 0, of=2, topics=["t"]) as first,
            open_member(network, tmp_path, 1, of=2, topics=["t"]) as second,
        ):
            await until_known(first, second, shards={0, 1})
        for of in (1, 3, None):
            with pytest.raises(ConfigError, match=r"is of a bridge of 2 shards: start it with --of 2, or"):
                async with open_member(network, tmp_path, 0, of=of, topics=["t"]):
                    pass
        async with open_member(network, tmp_path, 0, of=2, topics=["t"]):
            with pytest.raises(BridgeUnreachable, match=r"shard 1 has no member, and was at 'bridge\.m1' last"):
                await client.shards()


async def test_a_log_that_has_all_events_of_its_topics_is_not_divided_later(tmp_path: Path) -> None:
    async with open_network() as network:
        async with open_member(network, tmp_path, 0):
            pass
        for shards in ([0], [1], [0, 1]):
            with pytest.raises(ConfigError, match=r"has all events of its topics: start it without --of, or begin"):
                async with open_member(network, tmp_path, 0, of=2, shards=shards):
                    pass


async def test_a_shard_whose_log_is_gone_is_forgotten_when_the_bridge_is_told_so(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("bridge") as own,
        network.open_node("stranger") as stranger,
    ):
        client = BridgeClient(own, "bridge", patience=20)
        async with open_member(network, tmp_path, 0) as first, open_member(network, tmp_path, 2) as third:
            async with open_member(network, tmp_path, 1) as second:
                await until_known(first, second, third, shards={0, 1, 2})
                with pytest.raises(ConfigError, match=r"shard 1 is at 'bridge\.m1', and is not forgotten"):
                    await drop_shard(client, 1)
            with pytest.raises(NotAllowed):
                await drop_shard(BridgeClient(stranger, "bridge", patience=20), 1)
            await drop_shard(client, 1)
            assert [shard.number for shard in await client.shards()] == [0, 2]
            with pytest.raises(ConfigError, match="the bridge knows of no shard 1"):
                await drop_shard(client, 1)
        async with open_member(network, tmp_path, 0), open_member(network, tmp_path, 2):
            assert [shard.number for shard in await client.shards()] == [0, 2]


async def test_a_shard_that_only_a_checkpoint_names_is_waited_for(tmp_path: Path) -> None:
    """The member that has it has met none of those that are there: their logs are of an earlier version, or new."""
    async with (
        open_network() as network,
        network.open_node("reader") as reader,
        open_member(network, tmp_path, 0) as first,
    ):
        client = BridgeClient(reader, "bridge", patience=0.5)
        watch = BridgeWatch(None)
        await watch.look(client)
        checkpoint = dict.fromkeys(watch.extents, 0)
        watch.expect(checkpoint)
        await watch.wait(client, checkpoint, 0)
        watch.expect({**checkpoint, "1@0000000000000000": 5})
        with pytest.raises(
            BridgeUnreachable,
            match="shard 1, from which this query has read, has no member",
        ):
            await watch.wait(client, checkpoint, 0)
        async with open_member(network, tmp_path, 1) as second:
            await until_known(first, second, shards={0, 1})
            await watch.wait(client, checkpoint, 0)
            assert len(watch.extents) == 2


async def test_a_member_whose_disk_is_full_goes_on_and_remembers_later_whom_it_has_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    note = Store.note_members

    def refuse(self: Store, found: Mapping[int, str]) -> None:
        if full:
            raise StoreFull("no room")
        note(self, found)

    monkeypatch.setattr(Store, "note_members", refuse)
    monkeypatch.setattr("iris.spark_bridge.server.shard_claim._AGAIN", 0.01)
    async with (
        open_network() as network,
        open_member(network, tmp_path, 0) as first,
        open_member(network, tmp_path, 1) as second,
    ):
        await until_known(first, second, shards={0, 1})
        assert first.store.members() == {}
        full = False
        await wait_until(lambda: 1 in first.store.members())


def test_which_shards_there_are_is_in_the_log(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.note_members({0: "bridge.a", 1: "bridge.b"})
    store.note_members({1: "bridge.c"})
    store.close()
    store = make_store(tmp_path)
    assert store.members() == {0: "bridge.a", 1: "bridge.c"}
    assert store.forget_member(1)
    assert not store.forget_member(1)
    assert store.members() == {0: "bridge.a"}
    store.close()
