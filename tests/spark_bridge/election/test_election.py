"""When a copy takes a free lease, and when it leaves it to its primary; with an engine in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import final

import pytest
import trio

from iris.kernel.errors import ConfigError
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies import promote
from iris.spark_bridge.election import Election, open_election
from iris.spark_bridge.election.engine import LEASE
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.shard_claim import ShardClaim
from iris.testing import open_network
from tests.support.copies import ended, open_follower, open_primary, wait_copies
from tests.support.elections import Memory
from tests.support.waiting import wait_until


@final
class Frozen:
    """An engine that answers when it goes on."""

    def __init__(self, engine: Memory, goes_on: threading.Event) -> None:
        self._engine = engine
        self._goes_on = goes_on

    def is_free(self) -> bool:
        """Look, when it goes on."""
        self._goes_on.wait()
        return self._engine.is_free()

    def acquire(self) -> bool:
        """Take it, when it goes on."""
        self._goes_on.wait()
        return self._engine.acquire()

    def release(self) -> None:
        """Give it up."""
        self._engine.release()

    def close(self) -> None:
        """Nothing is open."""


async def _wait_looks(engine: Memory, more: int) -> None:
    wanted = engine.looks + more
    await wait_until(lambda: engine.looks >= wanted)


async def test_a_copy_leaves_a_free_lease_to_the_primary_that_it_follows(tmp_path: Path) -> None:
    leases: dict[str, str] = {}
    at_copy = Memory(leases, "copy")
    at_primary = Election(Memory(leases, "primary"), "bridge/0")
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary", election=at_primary),
        open_follower(network, tmp_path / "copy") as copy,
        network.open_node("bridge") as node,
        trio.open_nursery() as nursery,
    ):
        await wait_copies(BridgeClient(node, "bridge", patience=5), copy="in step")
        nursery.start_soon(Election(at_copy, "bridge/0").stand, copy, partial(promote, node, "bridge", 0))
        for _ in range(3):
            await _wait_looks(at_copy, 2)
            leases.clear()  # as an engine that was begun anew
            while not at_primary.held or not leases:  # noqa: ASYNC110 -- there is no event
                await trio.sleep(0.02)
        await _wait_looks(at_copy, 2)
        assert leases == {"lease": "primary"}
        assert copy.followed
        nursery.cancel_scope.cancel()


async def test_a_copy_takes_over_when_its_primary_lets_the_lease_go_while_it_is_followed(tmp_path: Path) -> None:
    leases = {"lease": "primary"}
    at_copy = Memory(leases, "copy")
    async with (
        open_network() as network,
        ended(open_primary(network, tmp_path / "primary"), "promoted elsewhere, to term 2") as wait_ended,
        open_follower(network, tmp_path / "copy") as copy,
        network.open_node("bridge") as node,
    ):
        await wait_copies(BridgeClient(node, "bridge", patience=5), copy="in step")
        election = Election(at_copy, "bridge/0")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(election.stand, copy, partial(promote, node, "bridge", 0))
            await _wait_looks(at_copy, 5)
            assert copy.followed, "somebody has the lease"
            at_copy.away = True
            await _wait_looks(at_copy, 5)
            assert election.problem == "somebody has pulled the plug"
            leases.clear()
            await _wait_looks(at_copy, 5)
            assert copy.followed, "nobody takes over while the engine is away"
            at_copy.away = False
            with trio.fail_after(60):
                assert (await copy.wait_promoted()).min_copies == 1
            nursery.cancel_scope.cancel()
        assert election.problem == ""
        await wait_ended()


async def test_a_copy_that_has_the_lease_leaves_it_to_a_primary_that_it_begins_to_follow(tmp_path: Path) -> None:
    leases = {"lease": "killed"}
    async with (
        open_network() as network,
        open_follower(network, tmp_path / "other", "other") as other,
        network.open_node("bridge") as node,
        trio.open_nursery() as nursery,
    ):
        async with open_follower(network, tmp_path / "next", "next") as following:
            async with open_primary(network, tmp_path / "primary"):
                await wait_copies(BridgeClient(node, "bridge", patience=5), next="in step", other="in step")
            assert (await promote(node, "bridge", 0, copy="next")).term == 2
            await following.wait_promoted()
        # The one that was promoted takes longer to open than the lease is kept for it.
        leases.clear()
        nursery.start_soon(
            Election(Memory(leases, "other"), "bridge/0").stand, other, partial(promote, node, "bridge", 0)
        )
        await wait_until(lambda: leases == {"lease": "other"})
        election = Election(Memory(leases, "next"), "bridge/0")
        async with open_primary(network, tmp_path / "next", election=election) as member:
            await wait_until(lambda: election.held)
            await wait_copies(BridgeClient(node, "bridge", patience=5), other="in step")
            assert not member.copies.is_deposed
            assert other.followed
        nursery.cancel_scope.cancel()


async def test_a_primary_has_the_lease_before_anything_that_takes_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = Election(Memory({}, "primary"), "bridge/0")

    async def check(_: ShardClaim) -> Mapping[int, str]:
        await wait_until(lambda: election.held)
        return {}

    monkeypatch.setattr(ShardClaim, "check", check)
    async with open_network() as network, open_primary(network, tmp_path, election=election) as member:
        assert member.copies.term == 1


async def test_an_engine_that_does_not_answer_is_away_and_leaving_does_not_wait_for_it() -> None:
    engine, goes_on = Memory({}, "primary"), threading.Event()
    try:
        election = Election(Frozen(engine, goes_on), "bridge/0")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(election.keep)
            await wait_until(lambda: election.problem)
            assert election.problem in (f"no answer within {LEASE} s", "the question before has no answer yet")
            assert not election.held
            goes_on.set()
            await wait_until(lambda: election.held)
            assert election.problem == ""
            nursery.cancel_scope.cancel()
    finally:
        goes_on.set()


async def test_an_election_without_copies_is_refused(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("bridge") as node:
        election = Election(Memory({}, "primary"), "bridge/0")
        with pytest.raises(ConfigError, match="without min_copies a primary confirms what no copy has"):
            async with open_bridge(node, topics=[">"], directory=tmp_path, election=election):
                raise AssertionError
        assert not election.held


async def test_an_engine_that_is_not_known_is_said() -> None:
    with pytest.raises(ConfigError, match="'zookeeper' is no engine of an election: write etcd://"):
        async with open_election("zookeeper://here", bridge="bridge", shard=0):
            raise AssertionError


@pytest.mark.parametrize(
    "url",
    [
        "postgress://iris:hunter2@here/base",
        "postgresql://iris:hunter2@here/base",
        "postgresql://iris@here/base?password=hunter2",
        "etcd://iris:hunter2@here",
        "host=here password=hunter2",
        "postgresql://iris:hunter2%zz@here/base",
        "postgresql://iris:hunter2@[here/base",
        "etcd://iris:hunter2/3@here",
        "etcd://iris:3?hunter2@here",
        "etcd://iris:hunter2@here:port",
        "etcd://iris:hunter2@[here",
    ],
)
async def test_what_is_wrong_in_a_url_is_said_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        async with open_election(url, bridge="bridge", shard=0):
            raise AssertionError
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("postgresql://iris:hunter2@here/base", "PGPASSWORD"),
        ("postgresql://iris@here/base?password=hunter2", "pgpass"),
        ("etcd://iris:hunter2@here", "ETCDCTL_USER"),
    ],
)
async def test_a_password_in_a_url_is_refused_and_where_it_belongs_is_said(url: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"which others on this machine can see: .*{instead}"):
        async with open_election(url, bridge="bridge", shard=0):
            raise AssertionError
