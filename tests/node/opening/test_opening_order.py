"""The order in which a node opens: however long each step takes, who dials meanwhile is checked, and known to all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.security.authority.issuing import issue_cluster, revoke_cluster
from iris.security.files.local_realm import private_home
from iris.security.files.realm_files import save_revocations
from iris.security.identity.revocation import RevocationList
from iris.testing import Rights
from tests.node.opening.test_opening import World
from tests.support.realms import WALL

T = TypeVar("T")

SHOP = "tcp://10.0.0.1:7000"
HONEST = "tcp://10.0.0.2:7000"
EVIL = "tcp://10.0.0.3:7000"


class SlowWires:
    """A transport whose every step takes a second."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def listen(self, urls: Any) -> tuple[str, ...]:
        bound: tuple[str, ...] = await self._inner.listen(urls)
        await trio.sleep(1)  # others can dial already
        return bound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Town:
    """A realm with a shop that opens slowly, an honest node, and one that is revoked and whom the others believe."""

    def __init__(self, home: Path, rights: Rights | None = None) -> None:
        self.home = home
        self.world = World(home / "run")
        issue = partial(issue_cluster, entropy=self.world.entropy, wall_now=WALL, rights=rights)
        realm, self.shop = issue(self.world.realm, "shop")
        realm, self.honest = issue(realm, "honest")
        realm, self.evil = issue(realm, "evil")
        self.list: RevocationList
        _, self.list = revoke_cluster(realm, "evil", wall_now=WALL)
        self.steps = 0

    def environment(self) -> iris.Environment:
        return self.world.environment(directory=None, lan=None, in_thread=self.at_once)

    def slow(self) -> iris.Environment:
        transport: Callable[[iris.Config], Any] = lambda config: SlowWires(self.world.transport(config))  # noqa: E731
        directory = self.world.directory
        return structs.replace(self.environment(), transport=transport, directory=directory, in_thread=self.in_a_second)

    @property
    def revocations(self) -> Path:
        """Path at which the shop looks for the list; the others, which leave no files, do not."""
        return private_home("revocations", "revocations") / self.shop.realm_id

    async def at_once(self, call: Callable[[], T], /) -> T:
        await trio.lowlevel.checkpoint()
        return call()

    async def in_a_second(self, call: Callable[[], T], /) -> T:
        self.steps += 1
        await trio.sleep(1)
        return call()


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    return Town(tmp_path)


async def knock(node: iris.Node, url: str) -> None:
    """Dial without a rest."""
    while True:
        try:
            await node._parts.mesh.connect([url])
        except iris.IrisError:
            await trio.sleep(0.1)
        else:
            await trio.sleep(0.1)


@pytest.mark.parametrize("client", [False, True])
@pytest.mark.parametrize("dials", [False, True])
async def test_who_dials_while_a_node_opens_is_checked_and_known_to_every_part(
    autojump_clock: MockClock, town: Town, dials: bool, client: bool
) -> None:
    save_revocations(town.revocations, town.list)
    linked: set[str] = set()
    opening = partial(iris.open_node, environment=town.environment())
    async with (
        opening(credential=town.honest, listen=[HONEST]) as honest,
        opening(credential=town.evil, listen=[EVIL]) as evil,
        trio.open_nursery() as nursery,
    ):
        for node in (honest, evil):
            nursery.start_soon(knock, node, SHOP)
        async with iris.open_node(
            credential=town.shop,
            listen=[SHOP],
            seeds=[HONEST, EVIL] if dials else (),
            client=client,
            environment=town.slow(),
        ) as shop:
            assert town.steps >= 2, "there was time to dial"
            await trio.sleep(5)
            linked.update(peer.identity.cluster for peer in shop._parts.mesh.peers.values())
            assert linked == {"honest"}
            if not client:
                async with shop.subscribe("news.>") as events:
                    await trio.sleep(1)
                    await honest.publish("news.today", "it rains")
                    with trio.fail_after(5):
                        assert (await anext(events)).payload == "it rains"
        nursery.cancel_scope.cancel()


async def test_whom_a_list_names_that_is_put_there_while_a_node_opens_is_cut_off(
    autojump_clock: MockClock, town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read before the node listens, and replaced before it is looked at again."""
    opening = partial(iris.open_node, environment=town.environment())
    async with opening(credential=town.evil, listen=[EVIL]) as evil, trio.open_nursery() as nursery:
        nursery.start_soon(knock, evil, SHOP)

        async def replace() -> None:
            while not town.steps:  # noqa: ASYNC110 -- on a virtual clock
                await trio.sleep(0.1)
            await trio.sleep(1.5)
            save_revocations(town.revocations, town.list)

        nursery.start_soon(replace)
        async with iris.open_node(credential=town.shop, listen=[SHOP], environment=town.slow()) as shop:
            await shop._parts.revoking.look()
            await trio.sleep(1)
            assert not shop._parts.mesh.peers
        nursery.cancel_scope.cancel()
