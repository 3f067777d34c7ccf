"""A node when threads or descriptors are short while it ends, or while its files are replaced."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.node.open import open_parts
from iris.security.authority.issuing import issue_cluster, revoke_cluster
from iris.security.files.credential_file import save_credential
from iris.security.files.local_realm import private_home
from iris.security.files.realm_files import save_revocations
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
