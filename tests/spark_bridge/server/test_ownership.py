"""Groups and queries belong to the cluster that has used them first, and nobody else reaches them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import lmdb
import pytest

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotAllowed, RemoteError
from iris.spark_bridge.admin import drop_group, drop_query, read_status, transfer, verify_log
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import LogDamaged, QuotaExceeded
from iris.spark_bridge.log import JOB_PREFIX, Store
from iris.testing import Network, Rights, open_network
from tests.support.arrivals import make_store, stored
from tests.support.bridge_members import open_member
from tests.support.staged import open_pair, part, staged_files, written


@asynccontextmanager
async def open_clients(network: Network, *names: str) -> AsyncIterator[list[BridgeClient]]:
    """Clients of the bridge on nodes that speak for these clusters."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(network.open_node(name)) for name in names]
        yield [BridgeClient(node, "bridge", patience=5) for node in nodes]


open_log = partial(open_member, topics=["in", "out.>"])


# -- queries ---------------------------------------------------------------------------------------------------


async def test_nobody_commits_in_the_name_of_anothers_query(tmp_path: Path) -> None:
    """An empty batch would do: the writer's own one would then be taken for a repeat, and its rows be lost."""
    async with open_network() as network:
        # What the documentation had for a reader's credential: the topic "nothing", on which this one may publish.
        network.credential("analysts", Rights(publishes=("nothing",), subscribes=("nothing",)))
        async with (
            open_pair(network, tmp_path) as (bridge, writer),
            open_clients(network, "analysts") as (analyst,),
        ):
            await writer.stage("bridge", part(0), written(["a"]))
            for attempt in (
                partial(analyst.commit, "bridge", "q", 0, []),
                partial(analyst.stage, "bridge", part(1), written(["forged"])),
                partial(analyst.abort, "bridge", "q", 0),
            ):
                with pytest.raises(NotAllowed, match=r"query 'q' belongs to cluster 'spark', .* speaks for 'analysts'"):
                    await attempt()
            assert await writer.commit("bridge", "q", 0, [part(0)]) == 1
            assert stored(bridge.store) == [b"a"]


async def test_a_query_that_commits_without_staging_is_its_clusters_too(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (_, writer),
        open_clients(network, "other") as (other,),
    ):
        assert await writer.commit("bridge", "q", 0, [part(0)], {part(0): written(["a"]).getvalue()}) == 1
        with pytest.raises(NotAllowed, match="belongs to cluster 'spark'"):
            await other.commit("bridge", "q", 1, [])
        assert await writer.commit("bridge", "q", 1, [part(0, batch=1)], {part(0, batch=1): written(["b"]).getvalue()})


async def test_whose_a_query_is_survives_a_restart(tmp_path: Path) -> None:
    async with open_network() as network, open_clients(network, "spark", "other") as (writer, other):
        async with open_log(network, tmp_path):
            await writer.stage("bridge", part(0), written(["a"]))
        async with open_log(network, tmp_path) as bridge:
            with pytest.raises(NotAllowed, match="belongs to cluster 'spark'"):
                await other.commit("bridge", "q", 0, [part(0)])
            assert await writer.commit("bridge", "q", 0, [part(0)]) == 1
            assert stored(bridge.store) == [b"a"]


@pytest.mark.parametrize("query", ["../escape", "/tmp", "a/b", "x" * 65])
async def test_a_commit_cannot_name_a_path(tmp_path: Path, query: str) -> None:
    victim = tmp_path / "escape" / "0"
    victim.mkdir(parents=True)
    async with open_network() as network, open_pair(network, tmp_path / "log") as (_, writer):
        for name in (query, str(victim.parent), "../../escape"):
            with pytest.raises(RemoteError, match=r"query is .*: use 1 to 64 letters"):
                await writer.commit("bridge", name, 7, [])
    assert victim.exists()


async def test_a_part_is_committed_once_however_often_it_is_listed(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, writer):
        await writer.stage("bridge", part(0), written(["a"]))
        with pytest.raises(RemoteError, match="a part is listed twice"):
            await writer.commit("bridge", "q", 0, [part(0)] * 1000)
        assert stored(bridge.store) == []


async def test_a_query_is_dropped_by_the_bridges_own_nodes(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (bridge, writer),
        open_clients(network, "bridge", "other") as (own, other),
    ):
        await writer.commit("bridge", "q", 0, [part(0)], {part(0): written(["a"]).getvalue()})
        await writer.stage("bridge", part(0, batch=1), written(["b"]))
        with pytest.raises(NotAllowed, match="only nodes of cluster 'bridge'"):
            await drop_query(writer, "q")
        await drop_query(own, "q")
        assert staged_files(tmp_path) == []
        with pytest.raises(ConfigError, match="the bridge has no query 'q'"):
            await drop_query(own, "q")
        assert await other.commit("bridge", "q", 0, [part(0)], {part(0): written(["c"]).getvalue()}) == 1
        assert stored(bridge.store) == [b"a", b"c"]


async def test_a_query_that_goes_to_another_cluster_keeps_its_last_batch(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_pair(network, tmp_path) as (_, writer),
        open_clients(network, "bridge", "other") as (own, other),
    ):
        carried = {part(0): written(["a"]).getvalue()}
        await writer.commit("bridge", "q", 0, [part(0)], carried)
        with pytest.raises(NotAllowed, match="only nodes of cluster 'bridge'"):
            await transfer(other, "query", "q", "other")
        await transfer(own, "query", "q", "other")
        assert await other.commit("bridge", "q", 0, [part(0)], carried) is None
        with pytest.raises(NotAllowed, match="belongs to cluster 'other'"):
            await writer.commit("bridge", "q", 1, [])
        with pytest.raises(ConfigError, match="the bridge has no query 'r'"):
            await transfer(own, "query", "r", "other")
        with pytest.raises(ConfigError, match="cluster"):
            await transfer(own, "query", "q", "no name")


# -- groups ----------------------------------------------------------------------------------------------------


async def test_nobody_moves_anothers_group(tmp_path: Path) -> None:
    async with open_network() as network, open_clients(network, "spark", "other", "bridge") as (spark, other, own):
        async with open_log(network, tmp_path):
            (shard,) = await spark.shards()
            await spark.pin("bridge", "g", {shard.id: 0})
        async with open_log(network, tmp_path):
            for attempt in (
                partial(other.pin, "bridge", "g", {shard.id: 0}),
                partial(other.move, "bridge", "g", {shard.id: 0}),
            ):
                with pytest.raises(NotAllowed, match="group 'g' belongs to cluster 'spark'"):
                    await attempt()
            await spark.move("bridge", "g", {shard.id: 0})
            assert [(group.group, group.owner) for group in (await read_status(other)).groups] == [("g", "spark")]
            await transfer(own, "group", "g", "other")
            await other.move("bridge", "g", {shard.id: 0})
            await drop_group(own, "g")
            await spark.pin("bridge", "g", {shard.id: 0})


async def test_a_group_has_offsets_of_the_members_shards_alone(tmp_path: Path) -> None:
    async with open_network() as network, open_pair(network, tmp_path) as (bridge, client):
        (shard,) = await client.shards()
        made_up = {f"{number}@0000000000000000": number for number in range(1000)}
        await client.pin("bridge", "g", {shard.id: 0, **made_up})
        await client.move("bridge", "g", {shard.id: 0, **made_up})
        (cursor,) = bridge.store.cursors.all()
        assert (cursor.start, cursor.offsets) == ({shard.id: 0}, {shard.id: 0})


# -- how many --------------------------------------------------------------------------------------------------


async def test_a_cluster_has_so_many_groups_and_queries_and_all_have_so_many(tmp_path: Path) -> None:
    few = Config(bridge_groups=3, bridge_groups_per_owner=2, bridge_queries=3, bridge_queries_per_owner=2)
    async with (
        open_network() as network,
        open_log(network, tmp_path, config=few) as bridge,
        open_clients(network, "a", "b", "bridge") as (first, second, own),
    ):
        for number in range(2):
            await first.pin("bridge", f"g{number}", {})
            await first.commit("bridge", f"q{number}", 0, [])
        with pytest.raises(QuotaExceeded, match="group 'g2' would be one too many: cluster 'a' may have 2 at this"):
            await first.pin("bridge", "g2", {})
        with pytest.raises(QuotaExceeded, match="group 'g2' would be one too many: cluster 'a' may have 2 at this"):
            await first.move("bridge", "g2", {})
        with pytest.raises(QuotaExceeded, match="query 'q2' would be one too many: cluster 'a'"):
            await first.commit("bridge", "q2", 0, [])
        await second.pin("bridge", "g3", {})
        with pytest.raises(QuotaExceeded, match=r"all clusters together may have 3 .* 'iris bridge drop --group NAME'"):
            await second.pin("bridge", "g4", {})
        assert {cursor.group for cursor in bridge.store.cursors.all()} == {"g0", "g1", "g3"}
        await first.pin("bridge", "g1", {})
        await drop_group(own, "g0")
        await drop_query(own, "q0")
        await first.pin("bridge", "g2", {})
        await first.commit("bridge", "q2", 0, [])


def test_a_job_is_its_clusters_for_a_day(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for name in (f"{JOB_PREFIX}1", "stream"):
        assert claim(store, name, "a", now=1) == "a"
    store.retainer.forget_publishers(2)
    assert claim(store, f"{JOB_PREFIX}1", "b", now=3) == "b"
    assert claim(store, "stream", "b", now=3) == "a"
    store.close()


def claim(store: Store, name: str, owner: str, *, now: int) -> str:
    return store.owners.claim("query", name, owner, most=10, most_of_owner=10, now=now)


def test_a_log_that_lacks_a_table_is_damaged(tmp_path: Path) -> None:
    make_store(tmp_path).close()
    with lmdb.open(str(tmp_path / "index"), max_dbs=32, map_size=64 * 1024 * 1024) as environment:
        sinks = environment.open_db(b"sinks")
        with environment.begin(write=True) as transaction:
            transaction.drop(sinks)
    with pytest.raises(LogDamaged, match="has 22 tables and not 23"):
        make_store(tmp_path)


def test_verifying_a_log_leaves_it_as_it_is(tmp_path: Path) -> None:
    make_store(tmp_path).close()
    before = (tmp_path / "index" / "data.mdb").read_bytes()
    assert [finding.damage for finding in verify_log(tmp_path)] == []
    assert (tmp_path / "index" / "data.mdb").read_bytes() == before


def test_a_record_of_an_owner_that_is_damaged_lets_nobody_have_the_name(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    claim(store, "precious", "first", now=1)
    store.close()
    path = tmp_path / "index" / "data.mdb"
    data = path.read_bytes()
    assert b"query/precious" in data
    path.write_bytes(data.replace(b"query/precious", b"query/Precious"))
    store = make_store(tmp_path)
    with pytest.raises(LogDamaged, match="table 'owners'"):
        claim(store, "precious", "second", now=1)
    store.close()
