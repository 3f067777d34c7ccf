"""A member of a bridge and its copies, as nodes in one process: what is confirmed is on the copies' disks, too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from iris.kernel.errors import ConfigError, NotAllowed, RequestTimeout
from iris.spark_bridge.admin import drop_copy
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.follower import open_copy
from iris.spark_bridge.copies.promotion import promote
from iris.spark_bridge.errors import BridgeUnreachable
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.successor import reopen
from iris.testing import open_network
from tests.support.arrivals import stored
from tests.support.copies import open_follower, open_primary, values, wait_copies
from tests.support.staged import part, written
from tests.support.waiting import wait_until


async def test_what_is_confirmed_is_on_the_copys_disk(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary") as member,
        open_follower(network, tmp_path / "copy") as copy,
        network.open_node("publisher") as publisher,
    ):
        client = BridgeClient(publisher, "bridge", patience=5)
        await wait_copies(client, copy="in step")
        for number in range(20):
            await publisher.publish_confirmed("a", b"%d" % number, timeout=60)
            assert stored(copy.store) == [b"%d" % n for n in range(number + 1)]
        assert await values(client) == stored(member.store) == stored(copy.store)


async def test_without_the_copy_nothing_is_confirmed_or_read_and_events_go_on(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary") as member,
        network.open_node("publisher") as publisher,
    ):
        client = BridgeClient(publisher, "bridge", patience=5)
        await publisher.publish("a", b"1")
        with pytest.raises(RequestTimeout, match="says: 0 of the 1 copies that it needs are in step"):
            await publisher.publish_confirmed("a", b"2", timeout=5)
        assert stored(member.store) == [b"1", b"2"]
        (shard,) = await client.shards()
        assert shard.next == 0
        async with open_follower(network, tmp_path / "copy"):
            await publisher.publish_confirmed("a", b"3", timeout=60)
            assert await values(client) == [b"1", b"2", b"3"]


async def test_a_promoted_copy_goes_on_and_the_former_primary_does_not(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher") as publisher,
        network.open_node("bridge") as operator,
        network.open_node("spark") as spark,
    ):
        client = BridgeClient(publisher, "bridge", patience=5)
        writer = BridgeClient(spark, "bridge", patience=20)
        async with network.open_node("bridge") as node:
            async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy") as copy:
                async with open_primary(network, tmp_path / "primary"):
                    await wait_copies(client, copy="in step")
                    await publisher.publish_confirmed("a", b"1", timeout=60)
                    rows = {part(0): written(["spark"]).getvalue()}
                    assert await writer.commit("bridge", "q", 0, [part(0)], rows) == 1
                    await writer.pin("bridge", "group", {(await client.shards())[0].id: 1})
                done = await promote(operator, "bridge", 0)
                assert (done.term, done.lost) == (2, [])
                settings = await copy.wait_promoted()
            with pytest.raises(ConfigError, match="has no copy that is there, and no primary that has copies"):
                await promote(operator, "bridge", 0)
            async with reopen(node, "bridge", tmp_path / "copy", settings, waiting=print) as member:
                assert await values(client) == [b"1", b"spark"]
                assert [cursor.group for cursor in member.store.cursors.all()] == ["group"]
                # The former primary comes back, and is notified.
                with pytest.raises(
                    ConfigError, match=r"promoted elsewhere, to term 2, and this log is of term 1: start"
                ):
                    async with open_primary(network, tmp_path / "primary"):
                        raise AssertionError
                # It becomes a copy.
                async with open_follower(network, tmp_path / "primary"):
                    await publisher.publish_confirmed("a", b"2", timeout=60)
                    assert await writer.commit("bridge", "q", 0, [part(0)], rows) is None
                    assert await values(client) == [b"1", b"spark", b"2"]
                    with pytest.raises(ConfigError, match="has a copy 'copy' already"):
                        async with open_follower(network, tmp_path / "other"):
                            raise AssertionError


async def test_events_that_nobody_confirmed_are_let_go(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher") as publisher,
        network.open_node("bridge") as operator,
    ):
        client = BridgeClient(publisher, "bridge", patience=5)
        async with network.open_node("bridge") as node:
            async with open_primary(network, tmp_path / "primary") as member:
                async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy"):
                    await publisher.publish_confirmed("a", b"1", timeout=60)
                for number in range(100):
                    await publisher.publish("a", b"lost %d" % number)
                with pytest.raises(RequestTimeout):
                    await publisher.publish_confirmed("a", b"lost", timeout=1)
                assert len(stored(member.store)) == 102
            async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy") as copy:
                await promote(operator, "bridge", 0)
                settings = await copy.wait_promoted()
            async with (
                reopen(node, "bridge", tmp_path / "copy", settings, waiting=print),
                open_follower(network, tmp_path / "primary") as former,
            ):
                await publisher.publish_confirmed("a", b"2", timeout=60)
                assert await values(client) == stored(former.store) == [b"1", b"2"]


async def test_a_primary_that_comes_back_is_nobodys_until_its_copy_has_met_it(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("publisher") as publisher:
        client = BridgeClient(publisher, "bridge", patience=2)
        async with open_primary(network, tmp_path / "primary"), open_follower(network, tmp_path / "copy"):
            await publisher.publish_confirmed("a", b"1", timeout=60)
        waits: list[str] = []
        async with network.open_node("bridge") as node, trio.open_nursery() as nursery:
            opened = trio.Event()

            async def come_back() -> None:
                async with open_bridge(
                    node, topics=[">"], directory=tmp_path / "primary", min_copies=1, waiting=waits.append
                ):
                    opened.set()
                    await trio.sleep_forever()

            nursery.start_soon(come_back)
            with pytest.raises(BridgeUnreachable):
                await client.shards()
            assert waits == ["0 of the 1 copies that it needs are in step"]
            with pytest.raises(RequestTimeout, match=r"'bridge' of cluster 'bridge' .* is away"):
                await publisher.publish_confirmed("a", b"2", timeout=1)
            async with open_follower(network, tmp_path / "copy"):
                await opened.wait()
                await publisher.publish_confirmed("a", b"3", timeout=60)
                assert await values(client) == [b"1", b"3"]
            nursery.cancel_scope.cancel()


async def test_who_waits_for_a_bridge_that_is_gone_is_told_what_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_network() as network,
        network.open_node("publisher") as publisher,
        network.open_node("bridge") as node,
    ):
        client = BridgeClient(publisher, "bridge", patience=1)
        async with open_copy(node, bridge="bridge", shard=0, directory=tmp_path / "copy"):
            async with open_primary(network, tmp_path / "primary"):
                await wait_copies(BridgeClient(publisher, "bridge", patience=5), copy="in step")
                await publisher.publish_confirmed("a", b"1", timeout=60)
                await publisher.publish("a", b"2")
                assert "is away" not in caplog.text
            promotes = f"its copy at node {node.id} go on .*: 'iris bridge promote bridge/0'"
            with pytest.raises(RequestTimeout, match=promotes) as waited:
                await publisher.publish_confirmed("a", b"3", timeout=1)
            with pytest.raises(BridgeUnreachable, match=promotes):
                await client.shards()
            assert "forget" not in str(waited.value), "that would give up what the copy has"
        with pytest.raises(RequestTimeout, match="if it is not to come back, 'iris bridge forget bridge'"):
            await publisher.publish_confirmed("a", b"4", timeout=1)
        with pytest.raises(BridgeUnreachable, match="is 'iris bridge --name bridge' running"):
            await client.shards()


async def test_a_plain_publish_that_is_stored_nowhere_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "iris")
    async with open_network() as network, network.open_parts("publisher") as (publisher, publisher_parts):
        for _ in range(2):
            caplog.clear()
            async with (
                network.open_node("bridge") as node,
                open_bridge(node, topics=["a.>"], directory=tmp_path) as member,
            ):
                await publisher.publish_confirmed("a.b", b"kept", timeout=60)
                assert "is away" not in caplog.text
                assert stored(member.store)
            await wait_until(lambda: not publisher_parts.patterns.pubsub.durable.known()[0].present)
            caplog.clear()
            for topic in ("a.b", "a.c", "a.b", "other"):
                await publisher.publish(topic, b"lost")
            (said,) = [record.message for record in caplog.records if "is away" in record.message]
            assert said.startswith(
                "durable subscriber bridge of cluster bridge is away: what this node publishes on a.b and other topics "
            )


async def test_a_log_that_is_a_copy_is_not_opened_as_another(tmp_path: Path) -> None:
    async with open_network() as network:
        async with open_follower(network, tmp_path / "copy"):
            pass
        with pytest.raises(ConfigError, match="is a copy: give --follow bridge/0, or promote it"):
            async with open_primary(network, tmp_path / "copy"):
                raise AssertionError


async def test_only_the_bridges_own_nodes_copy_and_promote(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary"),
        open_follower(network, tmp_path / "copy"),
        network.open_node("thief") as thief,
    ):
        with pytest.raises(NotAllowed, match="only nodes of cluster 'bridge'"):
            await promote(thief, "bridge", 0)
        with pytest.raises(NotAllowed, match="only nodes of cluster 'bridge' may copy its log"):
            await drop_copy(BridgeClient(thief, "bridge", patience=5), 0, "copy")
        with pytest.raises(ConfigError, match="only nodes of cluster 'bridge' may copy its log"):
            async with open_copy(thief, bridge="bridge", shard=0, directory=tmp_path / "stolen", name="b") as copy:
                await copy.wait_promoted()


async def test_a_copy_that_was_dropped_is_waited_for_no_more(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_primary(network, tmp_path / "primary"),
        network.open_node("bridge") as own,
        network.open_node("publisher") as publisher,
    ):
        client = BridgeClient(own, "bridge", patience=5)
        async with open_follower(network, tmp_path / "a", "a"):
            await publisher.publish_confirmed("a", b"1", timeout=60)
            with pytest.raises(ConfigError, match="copy 'a' is there: stop it, then drop it"):
                await drop_copy(client, 0, "a")
        async with open_follower(network, tmp_path / "b", "b"):
            await wait_copies(client, a="away", b="not counted")
            publish = partial(publisher.publish_confirmed, "a", b"2", timeout=60)
            with pytest.raises(RequestTimeout, match="0 of the 1 copies"):
                await publish(timeout=1)
            await drop_copy(client, 0, "a")
            with pytest.raises(ConfigError, match="has no copy 'a'"):
                await drop_copy(client, 0, "a")
            await publish()
            await wait_copies(client, b="in step")
