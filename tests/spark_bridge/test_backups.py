"""docs/howto/spark/backup.md: a bridge loses its disks and is put back, as the page says it is done.

Real processes are killed and their directories removed.  The publisher is one node that lives through all of it.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client import BridgeClient
from tests.spark_bridge.election.test_engines import needs_etcd
from tests.support.copied_bridges import wait_in_step
from tests.support.etcd import find_etcd, open_etcd
from tests.support.kafka import open_kafka
from tests.support.processes import Child, bridge_child, open_realm

_TIMEOUT = 120.0


@asynccontextmanager
async def open_shop() -> AsyncIterator[iris.Node]:
    async with iris.open_node("shop") as node:
        await node.wait_for("bridge", timeout=_TIMEOUT)
        yield node


async def publish(node: iris.Node, numbers: range) -> None:
    """Publish orders; they are acknowledged when it returns."""
    async with node.confirming(timeout=_TIMEOUT) as orders:
        for number in numbers:
            await orders.publish("orders.new", number, key=f"k{number % 5}")


async def read(node: iris.Node, group: str | None = None) -> tuple[list[Any], int]:
    """Return the orders that are there, or those that are new to a group, and how many are known to be missing."""
    found: list[Any] = []
    gaps = 0
    async with node.bridge().consume("orders.>", group=group, until="now") as orders:
        async for batch in orders:
            async with batch:
                found += [event.payload for event in batch]
                gaps += batch.gaps
    return found, gaps


@contextmanager
def processes(directory: Path) -> Iterator[dict[str, Child]]:
    """Processes by name; those that are left are killed in the end, and what they said is shown after an error."""
    running: dict[str, Child] = {}
    try:
        yield running
    finally:
        for child in running.values():
            child.end()
        if sys.exc_info()[0] is not None:
            for log in directory.glob("*.txt"):
                print(log.name, log.read_text()[-2000:], file=sys.stderr)  # noqa: T201


async def off_thread(call: Any, *arguments: Any) -> Any:
    """Do what waits for processes while the publisher goes on living."""
    return await trio.to_thread.run_sync(call, *arguments)


async def wait_in_tier(node: iris.Node, end: int) -> None:
    """Wait until the events before this offset are in the tier."""
    client = BridgeClient(node, "bridge", patience=_TIMEOUT)
    with trio.fail_after(_TIMEOUT):
        while [tier.next >= end for tier in (await read_status(client)).tiers] != [True]:  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.1)


@pytest.mark.parametrize(
    ("how", "has_tier"),
    [
        pytest.param(signal.SIGTERM, False, id="stopped"),
        pytest.param(signal.SIGKILL, True, id="as a snapshot of a running one, with a tier"),
    ],
)
async def test_a_directory_that_was_copied_goes_on_with_all_it_had(
    how: signal.Signals, has_tier: bool, tmp_path: Path
) -> None:
    with open_realm() as directory, processes(directory) as running:
        to_tier = ("--tier", str(directory / "tier"), "--tier-minutes", "0.01", "--keep-mib", "0.001")
        bridge = running["bridge"] = bridge_child(directory, *(to_tier if has_tier else ()))
        kept = ["log"]
        await off_thread(bridge.start)
        async with open_shop() as shop:
            await publish(shop, range(50))
            assert (await read(shop, "billing"))[0] == [*range(50)]
            await publish(shop, range(50, 60))
            if has_tier:
                await wait_in_tier(shop, 60)
                kept += [str(found.relative_to(directory)) for found in (directory / "tier").rglob("_manifest")]

            # A snapshot of a file system is what is there at one moment, as after a kill.
            await off_thread(bridge.end, how)
            for name in kept:
                shutil.copytree(directory / name, tmp_path / name)
            await off_thread(bridge.start)

            await publish(shop, range(60, 70))
            if has_tier:
                await wait_in_tier(shop, 70)
            await off_thread(bridge.end)
            for name in kept:
                shutil.rmtree(directory / name)
                shutil.copytree(tmp_path / name, directory / name)
            await off_thread(bridge.start)
            assert (await read(shop))[0] == [*range(60)], "all that was acknowledged until the backup, each once"
            assert await read(shop, "billing") == ([*range(50, 60)], 0), "a group goes on where it was then"

            # The publisher goes on with its numbers: what it had published since is known to be missing.
            await publish(shop, range(70, 80))
            assert await read(shop, "billing") == ([*range(70, 80)], 10)
            status = await read_status(BridgeClient(shop, "bridge", patience=_TIMEOUT))
            assert sum(gap.count for _, gap in status.gaps) == 10
            if has_tier:
                await wait_in_tier(shop, 70)

            # Another copy of the directory that comes up beside it.
            old = running["old"] = bridge_child(tmp_path, *to_tier, data="log")
            await off_thread(old.launch)
            assert "already" in await off_thread(old.wait_end)
            await publish(shop, range(80, 90))
            assert (await read(shop))[0] == [*range(60), *range(70, 90)]


@needs_etcd
async def test_a_copy_is_the_backup_and_one_that_was_set_aside_begins_anew(tmp_path: Path) -> None:
    program = find_etcd()
    assert program is not None
    with open_etcd(program) as etcd, open_realm() as directory, processes(directory) as running:

        def child(name: str, *options: str, ready: str = "is the copy") -> Child:
            command = [sys.executable, "-m", "iris", "bridge", "--data", str(directory / name), *options]
            command += ["--election", f"etcd://127.0.0.1:{etcd.port}"]
            running[name] = Child(command, ready=ready, log=directory / f"{name}.txt")
            return running[name]

        def follow(name: str) -> Child:
            return child(name, "--follow", "bridge/0", "--copy", name)

        primary = ("--topic", "orders.>", "--min-copies", "1")
        await off_thread(child("a", *primary, ready="serves").launch)
        for name in ("b", "c"):
            await off_thread(follow(name).start)
        await off_thread(running["a"].wait_ready)
        await wait_in_step()
        async with open_shop() as shop:
            await publish(shop, range(50))
            assert (await read(shop, "billing"))[0] == [*range(50)]

            # Set aside: one copy is stopped, while the other one lets events be confirmed.
            await off_thread(running["c"].end, signal.SIGTERM)
            shutil.copytree(directory / "c", tmp_path / "c")
            await publish(shop, range(50, 60))
            await off_thread(running["c"].start)

            # The primary's machine is gone: nothing is to be put back.
            await off_thread(running["a"].end)
            (directory / "a").rename(directory / "former")
            await publish(shop, range(60, 70))
            assert (await read(shop))[0] == [*range(70)]
            assert await read(shop, "billing") == ([*range(50, 70)], 0)
            await off_thread(child("former", *primary).launch)
            assert "was promoted elsewhere" in await off_thread(running["former"].wait_end)

            # All of the machines are gone.
            for name in ("b", "c"):
                await off_thread(running[name].end)
                shutil.rmtree(directory / name)
            shutil.copytree(tmp_path / "c", directory / "c")
            await off_thread(follow("c").start)
            promote = [sys.executable, "-m", "iris", "bridge", "promote", "bridge/0", "--copy", "c"]
            refused = await trio.run_process(promote, check=False, capture_stderr=True)
            assert refused.returncode == 2
            assert b"b is not: events that only they have would be lost" in refused.stderr
            await trio.run_process([*promote, "--force"], capture_stderr=True)
            for name in ("a", "b"):
                await off_thread(follow(name).start)
            await publish(shop, range(70, 80))
            assert (await read(shop))[0] == [*range(50), *range(70, 80)]
            assert await read(shop, "billing") == ([*range(70, 80)], 20)
            # The former primary is of a term that is over, here, too.
            await off_thread(child("former", *primary).launch)
            assert "was promoted elsewhere" in await off_thread(running["former"].wait_end)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("kafka")
async def test_a_broker_that_lost_its_disk_gets_all_from_the_others_and_an_old_disk_adds_nothing(
    tmp_path: Path,
) -> None:
    with open_kafka(3) as kafka, open_realm() as directory, processes(directory) as running:
        kafka.create_topic("bridge", 2, min_insync_replicas=2)
        command = [sys.executable, "-m", "iris", "bridge", "--topic", "orders.>", "--kafka", kafka.bootstrap]
        running["bridge"] = Child(command, ready="stores", log=directory / "bridge.txt")
        await off_thread(running["bridge"].start)
        async with open_shop() as shop:
            await publish(shop, range(50))
            assert sorted((await read(shop, "billing"))[0]) == [*range(50)]

            await off_thread(kafka.kill, 1)
            shutil.copytree(kafka.directory(1), tmp_path / "old")
            shutil.rmtree(kafka.directory(1))
            await off_thread(kafka.start, 1)
            await publish(shop, range(50, 60))
            await off_thread(kafka.wait_in_sync, "bridge")

            # The first one's disk of then comes back.
            await off_thread(kafka.stop, 1)
            shutil.rmtree(kafka.directory(1))
            (tmp_path / "old").rename(kafka.directory(1))
            await off_thread(kafka.start, 1)
            await publish(shop, range(60, 70))
            await off_thread(kafka.wait_in_sync, "bridge")
            await off_thread(kafka.kill, 2)
            with trio.fail_after(_TIMEOUT):  # the bridge asks another broker soon, if it has asked this one so far
                assert sorted({*(await read(shop))[0]}) == [*range(70)]
                assert sorted({*(await read(shop, "billing"))[0]}) == [*range(50, 70)]
