"""Leases of a bridge: granted by one member, written to its disk before, and never to two at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.errors import ConfigError, LeaseLost, NoSuchCluster, NotAllowed, RemoteError, RequestTimeout
from iris.node.operators import gather_reports
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log import Store, Transaction
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.leases import LeaseRecord, LeaseStatistics, LeaseTable, read_leases, write_lease
from iris.testing import Network, Rights, open_network
from tests.support.arrivals import make_store
from tests.support.bridges import BridgeProcess


def test_a_table_grants_one_at_a_time_and_counts_up() -> None:
    table = LeaseTable(7, {}, 0.0)
    first = table.acquire("a/x", "one", "n1", 10, 0.0)
    assert isinstance(first, LeaseRecord)
    assert first.token == 8
    assert table.acquire("a/x", "two", "n2", 10, 4.0) == 6.0, "seconds until it is free"
    assert table.acquire("a/x", "one", "n1", 10, 5.0) == first, "its first answer was lost"
    assert table.renew("a/x", "one", 14.0)
    assert not table.renew("a/x", "two", 14.0)
    assert not table.renew("a/x", "one", 24.0), "it is over at its end"
    second = table.acquire("a/x", "two", "n2", 10, 24.0, "a")
    other = table.acquire("b/x", "one", "n1", 10, 24.0, "b")
    assert isinstance(second, LeaseRecord)
    assert isinstance(other, LeaseRecord)
    assert (second.token, other.token) == (9, 10)
    assert table.count("a", 24.0) == (2, 1)
    assert not table.release("a/x", "one")
    assert table.release("a/x", "two")
    assert table.count("", 34.0) == (0, 0)
    assert table.statistics(34.0) == LeaseStatistics(held=0, granted=3, released=1, expired=2)


def write(store: Store, table: LeaseTable, name: str, holder: str, now: float) -> None:
    """Grant a lease, and write it."""
    granted = table.acquire(name, holder, "n", 10, now)
    assert isinstance(granted, LeaseRecord)
    ended = table.pop_ended()

    def change(view: Transaction) -> dict[int, list[EventRun]]:
        write_lease(view, name, granted, ended)
        return {}

    store.appender.append({}, now=1, change=change)


def read(store: Store, now: float, date: int = 0) -> LeaseTable:
    with store.read_transaction() as view:
        return read_leases(view, now, date)


def test_each_lease_that_was_written_counts_as_renewed_just_now_when_it_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    table = read(store, 0.0)
    write(store, table, "a/x", "one", 0.0)
    again = read(store, 100.0)
    assert again.acquire("a/x", "two", "n", 10, 101.0) == 9.0
    assert again.renew("a/x", "one", 109.0)
    later = again.acquire("a/y", "one", "n", 10, 109.0)
    assert isinstance(later, LeaseRecord)
    assert later.token == 2
    dated = read(store, 0.0, 1_700_000_000_000_000).acquire("a/y", "one", "n", 10, 0.0)
    assert isinstance(dated, LeaseRecord)
    assert dated.token == 1_700_000_000_000_001, "the date, where it is greater"
    store.close()


def test_leases_that_have_ended_are_deleted_with_the_next_grant(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    table = read(store, 0.0)
    for name in ("a/x", "a/y", "a/z"):
        write(store, table, name, "one", 0.0)
    assert table.release("a/x", "one")
    assert read(store, 1.0).is_held("a/x"), "not before"
    write(store, table, "a/x", "two", 1.0)
    write(store, table, "b/x", "two", 10.5)
    assert [read(store, 11.0).is_held(name) for name in ("a/x", "a/y", "a/z", "b/x")] == [True, False, False, True]
    store.close()


def test_a_lease_that_was_damaged_is_noticed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, read(store, 0.0), "a/x", "a holder", 0.0)
    store.close()
    path = tmp_path / "index" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(b"a holder", b"a Holder"))
    store = make_store(tmp_path)
    with pytest.raises(LogDamaged, match="a record of its table 'leases' is not what was written"):
        read(store, 0.0)
    store.close()


@asynccontextmanager
async def open_member(network: Network, directory: Path, **options: Any) -> AsyncIterator[iris.Node]:
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, topics=["t.>"], directory=directory, **options),
    ):
        yield node


async def test_one_node_has_a_lease_and_the_next_one_a_greater_token(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path) as bridge,
        network.open_node("workers") as one,
        network.open_node("workers") as two,
    ):
        async with one.bridge().lease("scheduler", ttl=2) as lease:
            with pytest.raises(RequestTimeout, match=r"was not free within 0.3 s"):
                async with two.bridge().lease("scheduler", timeout=0.3):
                    pass
            async with two.bridge().lease("another"), two.bridge().lease("third"):
                pass
        async with two.bridge().lease("scheduler", ttl=2) as later:
            assert later.token > lease.token
            assert (await gather_reports(bridge))["leases"] == LeaseStatistics(held=1, granted=4, released=3, expired=0)


async def test_each_cluster_has_its_own_leases_and_others_get_none_of_them(tmp_path: Path) -> None:
    async with (
        open_network(rights=Rights(serves=())) as network,
        open_member(network, tmp_path),
        network.open_node("workers") as worker,
        network.open_node("shop") as shop,
    ):
        async with worker.bridge().lease("scheduler"), shop.bridge().lease("scheduler", timeout=5):
            with pytest.raises(NotAllowed, match="asks for a lease of 'workers', and is no member"):
                async with shop.bridge().lease("scheduler", cluster="workers"):
                    pass
        with pytest.raises(NotAllowed, match="asks for a lease of 'workers', and is no member"):
            async with shop.bridge().lease("leader", cluster="workers"):
                pass


async def test_a_cluster_has_one_leader_whatever_its_members_speak_for(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path),
        network.open_node("a") as one,
        network.open_node("b") as two,
        one.join("workers", iris.Service("workers")),
        two.join("workers", iris.Service("workers")),
    ):
        async with one.bridge().lease("leader", cluster="workers") as first:
            with pytest.raises(RequestTimeout):
                async with two.bridge().lease("leader", cluster="workers", timeout=0.3):
                    pass
        async with two.bridge().lease("leader", cluster="workers") as second:
            assert second.token > first.token


async def test_a_bridge_that_comes_back_knows_who_has_what(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("workers") as one, network.open_node("workers") as two:
        async with trio.open_nursery() as nursery:
            async with open_member(network, tmp_path):
                await one.wait_for("bridge")
                held = await nursery.start(hold, one)
            async with open_member(network, tmp_path):
                await two.wait_for("bridge")
                with pytest.raises(RequestTimeout):
                    async with two.bridge().lease("scheduler", timeout=1):
                        pass
                assert held.left > 0, "renewed at the new one"
                nursery.cancel_scope.cancel()
        async with open_member(network, tmp_path):
            await two.wait_for("bridge")
            async with two.bridge().lease("scheduler", timeout=10) as later:
                assert later.token > held.token


async def hold(node: iris.Node, *, task_status: trio.TaskStatus[iris.Lease]) -> None:
    async with node.bridge().lease("scheduler", ttl=3) as lease:
        task_status.started(lease)
        await trio.sleep_forever()


async def test_without_a_bridge_there_is_no_lease(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("workers") as node:
        with pytest.raises(NoSuchCluster, match=r"a lease needs a bridge, .* and no node serves 'bridge': start one"):
            async with node.bridge().lease("scheduler"):
                pass
        with pytest.raises(NoSuchCluster, match="'workers' is no bridge that grants leases"):
            async with node.join("workers", iris.Service("workers")), node.bridge("workers").lease("scheduler"):
                pass
        for wrong in ({"ttl": 0.5}, {"ttl": 4000}, {"timeout": -1}, {"bridge": "no name"}, {"cluster": "no name"}):
            options: dict[str, Any] = dict(wrong)
            with pytest.raises(ConfigError):
                async with node.bridge(options.pop("bridge", "bridge")).lease("scheduler", **options):
                    pass


async def test_the_member_with_shard_0_grants_for_all(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path / "0", shards=[0], of=2),
        open_member(network, tmp_path / "1", shards=[1], of=2),
        network.open_node("workers") as node,
    ):
        tokens: list[int] = []
        for number in range(8):
            async with node.bridge().lease(f"lease-{number}") as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))
    for shard, known in enumerate((True, False)):
        store = make_store(tmp_path / str(shard), shards=())
        assert read(store, 0.0).is_held("workers/lease-7") is known, "its end is not written at once"
        store.close()


async def test_each_member_says_where_leases_are_renewed(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path / "0", shards=[0], of=2),
        open_member(network, tmp_path / "1", shards=[1], of=2),
        network.open_node("workers") as node,
    ):
        fields = {"name": "x", "cluster": "workers", "holder": bytes(16), "ttl": 5, "wait": 0}
        said: dict[str, set[str]] = {"at": set(), "elsewhere": set()}
        while not all(said.values()):
            answer = await node.request("bridge", fields, operation="lease")
            for key in said.keys() & answer.keys():
                said[key].add(answer[key])
        assert said["at"] == said["elsewhere"]
        (at,) = said["at"]
        for _ in range(8):
            assert await node.request(at, fields, operation="renew")


async def test_a_lease_has_no_realm_in_its_name(tmp_path: Path) -> None:
    """``b`` of the cluster ``far/a`` is none of the leases of the cluster ``far``."""
    async with open_network() as network, open_member(network, tmp_path), network.open_node("far") as node:
        fields = {"name": "a/b", "cluster": "far", "holder": bytes(16), "ttl": 5, "wait": 0}
        with pytest.raises(RemoteError, match="bad_request: name is 'a/b'"):
            await node.request("bridge", fields, operation="lease")


async def test_what_cannot_be_written_is_not_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_nothing(*_: object) -> None:
        raise StoreFull("no room")

    async with open_network() as network, open_member(network, tmp_path), network.open_node("workers") as node:
        with monkeypatch.context() as patch:
            patch.setattr("iris.spark_bridge.server.leases.write_lease", write_nothing)
            with pytest.raises(RemoteError, match="not_stored: no room"):
                async with node.bridge().lease("scheduler"):
                    pass
        async with node.bridge().lease("scheduler"):
            pass


async def test_a_cluster_has_a_bounded_number_of_leases_and_requests_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.spark_bridge.server.leases._MOST_OF_CLUSTER", 2)
    async with open_network() as network, open_member(network, tmp_path), network.open_node("workers") as node:
        async with node.bridge().lease("a"), node.bridge().lease("b"):
            with pytest.raises(RemoteError, match="too_many_leases: 2 leases are held, 2 by this cluster"):
                async with node.bridge().lease("c"):
                    pass
            with pytest.raises(RequestTimeout, match="was not free"):
                async with node.bridge().lease("a", timeout=0.2):
                    pass
        good = {"name": "x", "cluster": "workers", "holder": bytes(16), "ttl": 5, "wait": 0}
        wrong = [7, {**good, "name": "a b"}, {**good, "name": 5}, {**good, "holder": b"x"}, {**good, "ttl": 1e9}]
        for payload in (*wrong, {**good, "ttl": True}, {**good, "wait": 99}, {**good, "cluster": ""}):
            with pytest.raises(RemoteError, match="bad_request"):
                await node.request("bridge", payload, operation="lease")
        assert await node.request("bridge", good, operation="renew") is False


HOLDER = textwrap.dedent(
    """
    import sys, trio, iris

    async def main():
        async with iris.open_node("workers") as node:
            try:
                async with node.bridge().lease("scheduler", ttl=2) as lease:
                    print("held", lease.token, flush=True)
                    while True:
                        await trio.sleep(0.05)
            except iris.LeaseLost:
                print("lost", lease.token, flush=True)

    trio.run(main)
    """
)


def start_holder() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)


async def test_a_holder_that_is_stopped_is_followed_within_its_time_and_learns_that_it_lost(
    tmp_path: Path, own_home: None
) -> None:
    """In processes of their own: SIGSTOP, and SIGCONT after the next one has the lease."""
    with BridgeProcess(tmp_path / "data"):
        holder = start_holder()
        try:
            assert holder.stdout is not None
            word, token = (await trio.to_thread.run_sync(holder.stdout.readline)).split()
            assert word == "held"
            async with iris.open_node("workers") as node:
                holder.send_signal(signal.SIGSTOP)
                stopped = trio.current_time()
                async with node.bridge().lease("scheduler", ttl=2, timeout=30) as lease:
                    assert trio.current_time() - stopped <= 2 + 1
                    assert lease.token > int(token)
                    holder.send_signal(signal.SIGCONT)
                    assert (await trio.to_thread.run_sync(holder.stdout.readline)).split() == ["lost", token]
                    assert lease.left > 0
            assert await trio.to_thread.run_sync(holder.wait) == 0
        finally:
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
    assert issubclass(LeaseLost, iris.IrisError)
