"""Gateways that open and close slowly, a second at each step, while others dial them and are dialled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.federation.gateway import OpenGateway, open_gateway, open_gateway_parts
from iris.federation.policy import Policy
from iris.node import operators
from iris.node.open import OpenNode, open_parts
from iris.security.files.realm_files import save_revocations
from iris.testing import Rights, inspect
from tests.node.opening.test_opening_order import EVIL, HONEST, SHOP, Town

pytestmark = pytest.mark.long

RIGHTS = Rights(serves=(">",), gateway=True)
GATES = {"shop": "ws://10.0.1.1:7000/iris", "honest": "ws://10.0.1.2:7000/iris", "evil": "ws://10.0.1.3:7000/iris"}
OPEN = Policy(exports=(">",), export_topics=(">",))


class SlowSteps:
    """A transport that takes a second for each step that can take time."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def listen(self, urls: Any) -> tuple[str, ...]:
        bound: tuple[str, ...] = await self._inner.listen(urls)
        await trio.sleep(1)
        return bound

    async def dial(self, *args: Any) -> Any:
        await trio.sleep(1)
        return await self._inner.dial(*args)

    async def accept_reverse(self, *args: Any) -> Any:
        await trio.sleep(1)
        return await self._inner.accept_reverse(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def town(tmp_path: Path, own_home: None) -> Town:
    return Town(tmp_path, RIGHTS)


def slow(town: Town) -> iris.Environment:
    def transport(config: iris.Config) -> SlowSteps:
        return SlowSteps(town.world.transport(config))

    return structs.replace(
        town.environment(),
        transport=transport,
        directory=town.world.directory,
        in_thread=town.in_a_second,
    )


@asynccontextmanager
async def gateway(
    town: Town, who: str, url: str, peers: tuple[str, ...], environment: iris.Environment | None = None
) -> AsyncGenerator[tuple[OpenNode, OpenGateway]]:
    async with (
        open_parts(
            credential=getattr(town, who), listen=[url], site=who, environment=environment or town.environment()
        ) as node,
        open_gateway_parts(node.node, listen=[GATES[who]], peers=[GATES[one] for one in peers], policy=OPEN) as opened,
    ):
        yield node, opened


def linked(opened: OpenGateway) -> set[str]:
    return {peer.identity.cluster for peer in opened.between.peers.values()}


def greeter(who: str) -> iris.Service:
    service = iris.Service(who)

    async def greet(request: iris.Request) -> object:
        return f"{who} {request.payload}"

    service.request(greet)
    return service


@pytest.mark.parametrize("dials", [False, True])
@pytest.mark.parametrize("late", [False, True])
async def test_a_gateway_that_opens_slowly_is_linked_to_the_honest_only(
    autojump_clock: MockClock, town: Town, dials: bool, late: bool
) -> None:
    """``late``: the list is put there while it opens."""
    if not late:
        save_revocations(town.revocations, town.list)
    async with (
        gateway(town, "honest", HONEST, ("shop",)) as (honest, _),
        gateway(town, "evil", EVIL, ("shop",)),
        honest.node.join("far", greeter("far")),
        trio.open_nursery() as nursery,
    ):

        async def put_later() -> None:
            await trio.sleep(3.5)
            save_revocations(town.revocations, town.list)

        if late:
            nursery.start_soon(put_later)
        peers = ("honest", "evil") if dials else ()
        seen: set[str] = set()
        with trio.fail_after(300):
            async with gateway(town, "shop", SHOP, peers, slow(town)) as (shop, opened):
                for _ in range(20):
                    await trio.sleep(1)
                    seen |= linked(opened)
                if late:
                    await shop.parts.revoking.look()
                    await trio.sleep(30)
                    assert "evil" not in linked(opened)
                else:
                    assert seen == {"honest"}
                await opened.gateway.wait_for_site("honest")
                assert await shop.node.request("far", 1, timeout=20, wait=20) == "far 1"
            assert not linked(opened)
        nursery.cancel_scope.cancel()


async def test_a_list_that_comes_while_a_gateway_closes_is_in_force_there(
    autojump_clock: MockClock, town: Town
) -> None:
    async with gateway(town, "evil", EVIL, ("shop",)), trio.open_nursery() as nursery:
        async with open_parts(credential=town.shop, listen=[SHOP], site="shop", environment=slow(town)) as (
            shop,
            shop_parts,
        ):
            scope = trio.CancelScope()
            opened: OpenGateway | None = None

            async def hold() -> None:
                nonlocal opened
                async with open_gateway_parts(shop, listen=[GATES["shop"]], policy=OPEN) as opened:
                    with scope:
                        await trio.sleep_forever()

            nursery.start_soon(hold)
            await trio.sleep(10)
            assert opened is not None
            assert linked(opened) == {"evil"}
            scope.cancel()
            save_revocations(town.revocations, town.list)
            await shop_parts.revoking.look()
            await trio.sleep(0.05)
            assert "evil" not in linked(opened)
            await trio.sleep(20)
            assert not linked(opened)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_gateway_opened_and_closed_many_times_beside_its_node_leaves_nothing(
    autojump_clock: MockClock, town: Town, cancelled: bool
) -> None:
    """What it is opened beside goes on; a node that has been a gateway is none again, and says so."""
    async with gateway(town, "honest", HONEST, ("shop",)) as (honest, _), honest.node.join("far", greeter("far")):
        for _round in range(3):
            with trio.fail_after(200):
                async with open_parts(credential=town.shop, listen=[SHOP], site="shop", environment=slow(town)) as (
                    shop,
                    parts,
                ):
                    with trio.CancelScope() as scope:
                        async with open_gateway(shop, listen=[GATES["shop"]], policy=OPEN) as opened:
                            await opened.wait_for_site("honest")
                            assert await shop.request("far", 1, timeout=20, wait=20) == "far 1"
                            if cancelled:
                                scope.cancel()
                                await trio.sleep(1)
                    assert not inspect(shop).reports
                    assert len(operators.linked(shop)) == len(parts.mesh.peers)
                    with pytest.raises(iris.ConfigError, match="gateway already"):
                        await open_gateway(shop, listen=[GATES["shop"]]).__aenter__()
                    assert town.world.network.find("mem://" + GATES["shop"]) is None
