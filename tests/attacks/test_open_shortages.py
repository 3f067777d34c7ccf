"""Machines without threads or descriptors, and files whose rights are mended: nodes end, and take what is there."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- the door's
import errno
import os
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.doors.clients import Clients
from iris.doors.problems import Problem
from iris.doors.tokens import grant, withdraw
from iris.node.open import open_parts
from iris.security.authority.issuing import issue_cluster, revoke_cluster
from iris.security.files.credential_file import save_credential
from iris.security.files.local_realm import private_home
from iris.security.files.realm_files import save_revocations
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.node.opening.test_opening import LOOPBACK, OUTSIDE, World
from tests.node.opening.test_shortages import Threads
from tests.support.realms import WALL


class Descriptors:
    """The descriptors of the machine: while there are none left, no file of the named kind can be opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: str) -> None:
        self.left = True
        self.refused = 0
        real = os.open

        def opened(path: Any, *args: Any, **more: Any) -> int:
            if not self.left and names in str(path):
                self.refused += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(path, *args, **more)

        monkeypatch.setattr(os, "open", opened)


async def test_a_node_without_threads_ends_as_soon_as_any_other(
    autojump_clock: MockClock, world: World, threads: Threads
) -> None:
    opening = partial(iris.open_node, credential=world.shop, environment=world.environment())
    with trio.fail_after(60):
        async with opening(listen=[OUTSIDE]) as other:
            async with opening(listen=[LOOPBACK]) as node:
                assert len(node.statistics().links) == 1
                await trio.sleep(1)
                threads.left = False
                began = trio.current_time()
            assert trio.current_time() - began < 3
            assert not other.statistics().links
            threads.left = True


async def test_a_list_that_is_put_there_while_no_file_can_be_opened_is_in_force_afterwards(
    autojump_clock: MockClock, world: World, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm, evil = issue_cluster(world.realm, "evil", entropy=world.entropy, wall_now=WALL)
    _, newest = revoke_cluster(realm, "evil", wall_now=WALL)
    descriptors = Descriptors(monkeypatch, "revocations")
    opening = partial(iris.open_node, environment=world.environment())
    async with (
        opening(credential=world.shop, listen=[OUTSIDE]) as shop,
        opening(credential=evil, listen=[LOOPBACK], revocations=world.runtime / "none"),
    ):
        save_revocations(private_home("revocations", "revocations") / world.shop.realm_id, newest)
        descriptors.left = False
        assert len(shop.statistics().links) == 1
        await trio.sleep(5)
        assert descriptors.refused
        descriptors.left = True
        await trio.sleep(5)
        assert not shop.statistics().links


async def test_a_credential_that_is_replaced_while_no_file_can_be_opened_is_taken_afterwards(
    autojump_clock: MockClock, world: World, threads: Threads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "shop.json"
    save_credential(file, world.shop)
    descriptors = Descriptors(monkeypatch, "shop.json")
    _, fresh = issue_cluster(world.realm, "shop", entropy=world.entropy, wall_now=WALL + 60)
    assert fresh.certificate != world.shop.certificate
    async with open_parts(credential=file, listen=[OUTSIDE], environment=world.environment()) as (_, shop_parts):
        save_credential(file, fresh, replace=True)
        descriptors.left = False
        await trio.sleep(5)
        assert descriptors.refused
        descriptors.left = True
        await trio.sleep(5)
        assert shop_parts.mesh.identity.certificate == fresh.certificate


async def test_a_directory_that_cannot_be_looked_into_any_more_ends_no_node(
    autojump_clock: MockClock, world: World, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat
    broken = False

    def stat(path: Any, *args: Any, **more: Any) -> os.stat_result:
        if broken and str(world.runtime) in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "stat", stat)
    opening = partial(iris.open_node, credential=world.shop, environment=world.environment())
    async with opening(listen=[OUTSIDE]) as one, one.subscribe("news") as events, opening(listen=[LOOPBACK]) as other:
        broken = True
        await trio.sleep(30)
        await other.publish("news", "it rains")
        with trio.fail_after(5):
            assert (await anext(events)).payload == "it rains"
        broken = False


async def test_a_document_is_saved_at_its_end_though_no_thread_is_left(
    autojump_clock: MockClock, threads: Threads, tmp_path: Path
) -> None:
    async with open_network() as network, network.open_node("prices") as node:
        with trio.fail_after(30):
            async with node.state("prices", path=tmp_path / "copy") as prices:
                prices["a"] = 1
                threads.left = False
        threads.left = True
        async with node.state("prices", path=tmp_path / "copy") as prices:
            assert prices["a"] == 1


async def test_a_bridge_ends_though_no_thread_is_left(
    autojump_clock: MockClock, threads: Threads, tmp_path: Path
) -> None:
    async with open_network() as network, network.open_node("bridge") as node, network.open_node("desk") as desk:
        with trio.fail_after(60):
            async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
                await desk.publish_confirmed("jobs", 1)
                threads.left = False
        threads.left = True
        with trio.fail_after(60):
            async with open_bridge(node, topics=["jobs"], directory=tmp_path / "log"):
                await desk.publish_confirmed("jobs", 2)


async def test_a_list_that_others_could_read_is_in_force_once_its_mode_is_mended(
    autojump_clock: MockClock, world: World, threads: Threads
) -> None:
    realm, evil = issue_cluster(world.realm, "evil", entropy=world.entropy, wall_now=WALL)
    _, newest = revoke_cluster(realm, "evil", wall_now=WALL)
    opening = partial(iris.open_node, environment=world.environment())
    async with (
        opening(credential=world.shop, listen=[OUTSIDE]) as shop,
        opening(credential=evil, listen=[LOOPBACK], revocations=world.runtime / "none"),
    ):
        path = private_home("revocations", "revocations") / world.shop.realm_id
        save_revocations(path, newest)
        path.chmod(0o644)
        await trio.sleep(5)
        assert len(shop.statistics().links) == 1
        path.chmod(0o600)
        await trio.sleep(5)
        assert not shop.statistics().links


async def test_a_credential_that_others_could_read_is_taken_once_its_mode_is_mended(
    autojump_clock: MockClock, world: World, threads: Threads, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "shop.json"
    save_credential(file, world.shop)
    _, fresh = issue_cluster(world.realm, "shop", entropy=world.entropy, wall_now=WALL + 60)
    async with open_parts(credential=file, listen=[OUTSIDE], environment=world.environment()) as (_, shop_parts):
        save_credential(file, fresh, replace=True)
        file.chmod(0o640)
        await trio.sleep(20)
        assert sum("chmod" in record.message for record in caplog.records) == 1
        file.chmod(0o600)
        await trio.sleep(5)
        assert shop_parts.mesh.identity.certificate == fresh.certificate


def test_a_token_that_is_taken_away_in_a_file_that_others_could_read_is_gone_once_its_mode_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.doors.clients._REREAD", 0.01)
    path = tmp_path / "tokens"
    secret = grant(path, "page", call=("shop",))
    grant(path, "other", call=("shop",))

    async def main() -> None:
        clients = Clients(path, lambda: WALL)
        following = asyncio.ensure_future(clients.follow())
        assert clients.admit(secret).name == "page"
        withdraw(path, "page")
        path.chmod(0o644)
        await asyncio.sleep(0.05)
        path.chmod(0o600)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await asyncio.sleep(0.05)
        with pytest.raises(Problem):
            clients.admit(secret)
        following.cancel()

    asyncio.run(main())


async def test_a_node_without_threads_joins_nothing_twice_when_they_come_back(
    autojump_clock: MockClock, world: World, threads: Threads, tmp_path: Path
) -> None:
    """Two tasks join one cluster with a credential file that is read in a thread: one is a member, one is refused."""
    realm, other = issue_cluster(world.realm, "other", entropy=world.entropy, wall_now=WALL)
    del realm
    file = tmp_path / "other.json"
    save_credential(file, other)
    outcomes: list[str] = []
    async with iris.open_node(credential=world.shop, listen=[OUTSIDE], environment=world.environment()) as node:
        threads.left = False

        async def join() -> None:
            try:
                async with node.join("other", iris.Service("other"), credential=file):
                    outcomes.append("member")
                    await trio.sleep(5)
            except iris.IrisError:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            nursery.start_soon(join)
            await trio.sleep(5)
            threads.left = True
        assert sorted(outcomes) == ["member", "refused"]
        assert [member.node for member in node.members("other")] == []
