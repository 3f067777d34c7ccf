"""A bridge with a tier among nodes: readers go through both, publishers never wait, and what does not fit is refused.

On the network in memory and the real clock, because the log works in threads.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import ConfigError
from iris.node.node import Node
from iris.spark_bridge.admin import read_events, read_status
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.follower import open_copy
from iris.spark_bridge.copies.promotion import promote
from iris.spark_bridge.errors import TierUnreachable
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.log.tiering import TierObject
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.server.successor import reopen
from iris.spark_bridge.tier import Tier
from iris.spark_bridge.tier.parquet import TierReader
from iris.testing import Network, open_network
from tests.support.bridge_members import open_member
from tests.support.copies import open_follower, open_primary
from tests.support.tiers import local_segments, read_parquet
from tests.support.waiting import wait_until

SOON = 0.01


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention is applied every few milliseconds."""
    monkeypatch.setattr("iris.spark_bridge.server.member._RETENTION_INTERVAL", 0.05)


def bridge(network: Network, directory: Path, **options: Any) -> AbstractAsyncContextManager[BridgeMember]:
    """Open a bridge that keeps nothing on its disk that the tier has."""
    chosen: dict[str, Any] = {"retention": Retention(max_age=SOON), **options}
    return open_member(network, directory / "log", **chosen)


def tier(directory: Path) -> Tier:
    return Tier(url=str(directory / "tier"), seal_after=SOON)


async def publish(node: Node, numbers: range, topic: str = "a.b") -> None:
    async with node.confirming(timeout=60) as confirmed:
        for number in numbers:
            await confirmed.publish(topic, number)


async def wait_left(directory: Path) -> None:
    """Wait until all of the log is in the tier and nothing on the disk."""
    await wait_until(lambda: not local_segments(directory / "log"))


async def test_readers_go_from_the_tier_to_the_disk(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        bridge(network, tmp_path, tier=tier(tmp_path)) as member,
        network.open_node("desk") as node,
    ):
        await publish(node, range(100))
        await publish(node, range(3), topic="rare.x")
        await wait_left(tmp_path)
        await publish(node, range(100, 200))
        client = BridgeClient(node, "bridge", patience=30)
        events = [event async for event in read_events(client)]
        assert [event["offset"] for event in events] == list(range(203))
        assert [event["value"] for event in events if event["topic"] == "a.b"] == list(range(200))
        assert [event["value"] async for event in read_events(client, topics=["rare.>"])] == [0, 1, 2]
        found: list[Any] = []
        async with node.bridge().consume("a.>", group="billing") as consumer:
            with trio.fail_after(60):
                while len(found) < 200:
                    batch = await anext(consumer)
                    found += [event.payload for event in batch]
                    assert batch.missed == 0
                    await batch.commit()
        assert found == list(range(200))
        status = (await read_status(client)).tiers[0]
        assert (status.shard, status.next, status.problem) == (0, 103, "")
        assert status.objects == len(list(member.store.tiering.objects(0)))
        report = await member.report()
        assert report.tier[0].bytes == status.bytes > 0
    assert [row["offset"] for row in read_parquet(tmp_path / "tier")][:103] == list(range(103))


async def test_a_bridge_that_is_started_again_serves_what_is_in_the_tier(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("desk") as node:
        for turn in range(2):
            async with bridge(network, tmp_path, tier=tier(tmp_path)):
                await node.wait_for("bridge", timeout=30)
                await publish(node, range(10 * turn, 10 * turn + 10))
                await wait_left(tmp_path)
                client = BridgeClient(node, "bridge", patience=30)
                values = [event["value"] async for event in read_events(client)]
                assert values == list(range(10 * turn + 10))
        with pytest.raises(ConfigError, match="has a tier: give the --tier"):
            async with bridge(network, tmp_path):
                pass


async def test_publishers_do_not_wait_for_a_tier_that_does_not_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tier").write_text("no directory")
    with caplog.at_level(logging.INFO, "iris"):
        async with (
            open_network() as network,
            bridge(network, tmp_path, tier=tier(tmp_path)) as member,
            network.open_node("desk") as node,
        ):
            await publish(node, range(20))
            client = BridgeClient(node, "bridge", patience=30)
            with trio.fail_after(60):
                while (await read_status(client)).tiers[0].behind < 20:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.05)
            member.store.retainer.retain(Retention(max_age=SOON), now=member.now())
            assert [event["value"] async for event in read_events(client)] == list(range(20))
            status = (await read_status(client)).tiers[0]
            assert status.failures > 0
            assert "does not answer, or refuses" in status.problem
            (tmp_path / "tier").unlink()
            await wait_left(tmp_path)
            assert [event["value"] async for event in read_events(client)] == list(range(20))
            with trio.fail_after(60):
                while (await read_status(client)).tiers[0].problem:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.05)
    said = [record.message for record in caplog.records if record.name == "iris"]
    assert len([text for text in said if "stays on its disk, shard 0" in text]) == 1, "once, and not at each attempt"
    assert len([text for text in said if "goes to the tier again" in text]) == 1


async def test_a_reader_waits_for_a_tier_that_does_not_answer_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_network() as network,
        bridge(network, tmp_path, tier=tier(tmp_path)),
        network.open_node("desk") as node,
    ):
        await publish(node, range(20))
        await wait_left(tmp_path)
        await publish(node, range(20, 30))
        real, failures = TierReader.read_group, [0]

        def fail(reader: TierReader, shard: str, found: TierObject, group: int) -> Any:
            if failures[0]:
                failures[0] -= 1
                raise TierUnreachable("the tier does not answer")
            return real(reader, shard, found, group)

        monkeypatch.setattr(TierReader, "read_group", fail)
        failures[0] = 1_000_000
        impatient = BridgeClient(node, "bridge", patience=0.3)
        with pytest.raises(TierUnreachable, match="does not answer"):
            [event async for event in read_events(impatient)]
        failures[0] = 3
        patient = BridgeClient(node, "bridge", patience=60)
        assert [event["value"] async for event in read_events(patient)] == list(range(30))
        failures[0] = 1
        async with node.bridge().consume(">", group="billing") as consumer:
            with trio.fail_after(60):
                assert (await anext(consumer))[0].payload == 0
        assert failures[0] == 0


async def test_a_promoted_copy_goes_on_with_the_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = Tier(url="tier", seal_after=SOON)
    options: dict[str, Any] = {"tier": relative, "retention": Retention(max_age=SOON)}
    async with (
        open_network() as network,
        network.open_node("desk") as node,
        network.open_node("bridge") as operator,
        network.open_node("bridge") as standby,
    ):
        client = BridgeClient(node, "bridge", patience=30)
        async with open_copy(standby, bridge="bridge", shard=0, directory=tmp_path / "copy") as copy:
            async with open_primary(network, tmp_path / "log", **options):
                await publish(node, range(100))
                await wait_left(tmp_path)
                await wait_until(lambda: not local_segments(tmp_path / "copy"))
                await publish(node, range(100, 200))
            assert (await promote(operator, "bridge", 0)).lost == []
            settings = await copy.wait_promoted()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        async with (
            reopen(standby, "bridge", tmp_path / "copy", settings, waiting=print),
            open_follower(network, tmp_path / "log"),
        ):
            await publish(node, range(200, 210))
            assert [event["value"] async for event in read_events(client)] == list(range(210))
            with trio.fail_after(60):
                while local_segments(tmp_path / "copy") or local_segments(tmp_path / "log"):  # noqa: ASYNC110 -- likewise
                    await trio.sleep(0.05)
            assert [event["value"] async for event in read_events(client)] == list(range(210))
    assert [row["offset"] for row in read_parquet(tmp_path / "tier")] == list(range(210))


async def test_what_no_copy_has_does_not_go_to_the_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iris.spark_bridge.tier.uploads._COPYING", 0.05)
    async with open_network() as network, network.open_node("desk") as node:
        client = BridgeClient(node, "bridge", patience=30)
        async with open_primary(network, tmp_path / "log", tier=tier(tmp_path)) as member:
            await node.publish("a.b", 0)
            with trio.fail_after(60):
                while "copies do: 0 of the 1" not in (await read_status(client)).tiers[0].problem:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            assert member.store.tiering.objects(0) == []
            async with open_follower(network, tmp_path / "copy"):
                await wait_until(lambda: member.store.tiering.objects(0))
