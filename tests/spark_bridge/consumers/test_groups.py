"""Groups that nobody uses expire, those in use do not; operators have them forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import ConfigError, NotAllowed, RemoteError
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.consumers import ReaderGroups
from iris.spark_bridge.datasource import source
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.source import IrisStreamReader
from iris.spark_bridge.errors import QuotaExceeded
from iris.spark_bridge.log import GROUP_IDLE, Retention, Store
from iris.testing import open_network
from tests.spark_bridge.datasource.test_losses import InThread
from tests.support.arrivals import make_store
from tests.support.bridge_members import open_member
from tests.support.waiting import wait_until

HOUR = 3_600_000_000
DAY = 24 * HOUR


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = make_store(tmp_path)
    yield store
    store.close()


def claim(store: Store, group: str, now: int, owner: str = "desk") -> str:
    return store.cursors.claim(group, owner, most=10, most_of_owner=10, now=now)


def begin(store: Store, group: str, now: int) -> None:
    claim(store, group, now)
    store.cursors.pin(group, {}, now=now)


def groups(store: Store) -> set[str]:
    return {cursor.group for cursor in store.cursors.all()} | store.owners.of_kind("group").keys()


async def test_a_group_that_nobody_uses_expires_and_is_told_and_counted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    begin(store, "old", 0)
    begin(store, "young", 10 * DAY)
    claim(store, "claimed", 0)  # and never begun
    reading = ReaderGroups(store, 30 * 86_400)
    assert await reading.expire(30 * DAY) == ()
    assert set(await reading.expire(30 * DAY + 1)) == {"old", "claimed"}
    assert groups(store) == {"young"}
    assert reading.expired == 2
    assert "group old of cluster desk was not used for 30 days" in caplog.text
    assert claim(store, "old", 31 * DAY, owner="others") == "others", "its name is free"


async def test_a_group_with_a_consumer_never_expires(store: Store) -> None:
    begin(store, "billing", 0)
    reading = ReaderGroups(store, 86_400)
    with reading.using("billing"), reading.using("billing"):
        for day in range(1, 10):
            assert await reading.expire(day * DAY) == ()
    assert await reading.wait_unused("billing")
    assert await reading.expire(10 * DAY) == (), "a day from when it was used last"
    assert await reading.expire(11 * DAY + 1) == ("billing",)


async def test_use_by_its_owner_keeps_a_group_and_use_by_others_does_not(store: Store) -> None:
    begin(store, "billing", 0)
    reading = ReaderGroups(store, 86_400)
    assert claim(store, "billing", DAY) == "desk"
    assert await reading.expire(2 * DAY) == ()
    assert claim(store, "billing", 2 * DAY, owner="others") == "desk"
    assert await reading.expire(2 * DAY + 1) == ("billing",)


async def test_the_groups_of_queues_do_not_expire(store: Store) -> None:
    begin(store, "queue/jobs", 0)
    assert await ReaderGroups(store, 86_400).expire(1000 * DAY) == ()


async def test_names_that_expired_make_room(store: Store) -> None:
    for number in range(10):
        begin(store, f"look-{number}", 0)
    with pytest.raises(QuotaExceeded, match="would be one too many"):
        claim(store, "more", 0)
    assert len(await ReaderGroups(store, 86_400).expire(DAY + 1)) == 10
    claim(store, "more", DAY + 1)


@pytest.mark.parametrize("idle", [0, 3600, float("inf"), float("nan"), "long"])
def test_a_time_that_is_no_good_is_refused(idle: Any) -> None:
    with pytest.raises(ConfigError, match="group_idle"):
        Retention(group_idle=idle)
    assert Retention().group_idle == GROUP_IDLE == 30 * 86_400


async def test_a_bridge_forgets_old_groups_once_it_believes_its_clock(tmp_path: Path) -> None:
    now = 1.8e9

    async def use(group: str) -> None:
        async with node.bridge().consume("orders.>", group=group, until="now") as orders:
            assert [len(batch) async for batch in orders]

    async with open_network() as network, network.open_node("desk") as node:
        async with open_member(network, tmp_path, wall_clock=lambda: now):
            await node.wait_for("bridge")
            await node.publish_confirmed("orders.new", 1)
            await use("old")
            await use("kept")
        now += 31 * 86_400
        async with open_member(network, tmp_path, wall_clock=lambda: now) as member:
            await node.wait_for("bridge")
            await node.publish_confirmed("orders.new", 2)
            await use("kept")
            assert groups(member.store) == {"old", "kept"}, "nothing proves that so much time has passed"
        async with open_member(network, tmp_path, wall_clock=lambda: now) as member:
            await wait_until(lambda: member.statistics().expired_groups == 1)
            assert groups(member.store) == {"kept"}


async def test_an_idle_query_of_spark_gives_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = 0.0
    async with (
        open_network() as network,
        open_member(network, tmp_path) as member,
        network.open_node("reader") as reader,
    ):
        await reader.wait_for("bridge")
        await reader.publish_confirmed("orders.new", 1)
        portal = InThread(BridgeClient(reader, "bridge", patience=5))

        def open_portal(_: object) -> InThread:
            return portal

        def monotonic(original: Callable[[], float] = time.monotonic) -> float:
            return original() + later

        monkeypatch.setattr(source, "portal_to", open_portal)
        monkeypatch.setattr(time, "monotonic", monotonic)
        stream = IrisStreamReader(SourceOptions(group="g", topics=("silent",)))
        begun = await trio.to_thread.run_sync(stream.initialOffset)

        async def last_use() -> int:
            """Return when the group was last used, after the query has looked for events in vain."""
            await trio.to_thread.run_sync(stream.commit, begun)
            (cursor,) = member.store.cursors.all()
            return cursor.timestamp

        first = await last_use()
        assert await last_use() == first, "nothing is sent for nothing"
        later = 1801.0
        assert await last_use() > first


async def test_a_program_of_an_operator_has_a_group_forgotten(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path) as member,
        network.open_node("desk") as node,
        network.open_node("bridge") as operator,
    ):
        await node.wait_for("bridge")
        await operator.wait_for("bridge")
        await node.publish_confirmed("orders.new", 1)
        async with node.bridge().consume("orders.>", group="billing", until="now") as orders:
            assert [len(batch) async for batch in orders] == [1]
            with pytest.raises(RemoteError, match="is in use"):
                await operator.bridge().drop_group("billing")
        with pytest.raises(NotAllowed, match="only nodes of cluster 'bridge'"):
            await node.bridge().drop_group("billing")
        await operator.bridge().drop_group("billing")
        assert groups(member.store) == set()
        with pytest.raises(ConfigError, match="has no group 'billing'"):
            await operator.bridge().drop_group("billing")
        for name in ("", "x" * 257, 7):
            with pytest.raises(ConfigError, match="is not a group name"):
                await operator.bridge().drop_group(name)  # type: ignore[arg-type]
