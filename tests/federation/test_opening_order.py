"""The order in which a gateway opens: however long each step takes, who dials meanwhile is checked, and passed on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.federation.gateway import open_gateway
from iris.security.files.realm_files import save_revocations
from iris.testing import Rights
from tests.node.opening.test_opening_order import EVIL, HONEST, SHOP, Town
from tests.support.federations import EVERYTHING

SHOP_GATE = "tcp://10.0.0.1:8000"
HONEST_GATE = "tcp://10.0.0.2:8000"
EVIL_GATE = "tcp://10.0.0.3:8000"


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    """Sites of a realm: that of the shop, whose gateway opens slowly, an honest one, and one that is revoked."""
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    return Town(tmp_path, Rights(gateway=True))


@pytest.mark.parametrize("dials", [False, True])
async def test_who_dials_while_a_gateway_opens_is_checked_and_known_to_every_part(
    autojump_clock: MockClock, town: Town, dials: bool
) -> None:
    save_revocations(town.revocations, town.list)
    opening = partial(iris.open_node, environment=town.environment())
    async with (
        opening(credential=town.honest, listen=[HONEST], site="us") as honest,
        opening(credential=town.evil, listen=[EVIL], site="ap") as evil,
        open_gateway(honest, listen=[HONEST_GATE], peers=[SHOP_GATE], policy=EVERYTHING) as us,
        open_gateway(evil, listen=[EVIL_GATE], peers=[SHOP_GATE], policy=EVERYTHING) as ap,
        iris.open_node(credential=town.shop, listen=[SHOP], site="eu", environment=town.slow()) as shop,
        shop.subscribe("news.>") as events,
        open_gateway(
            shop, listen=[SHOP_GATE], peers=[HONEST_GATE, EVIL_GATE] if dials else (), policy=EVERYTHING
        ) as eu,
    ):
        assert town.steps >= 2, "there was time to dial"
        with trio.fail_after(20):
            await eu.wait_for_site("us")
            await us.wait_for_site("eu")
        await trio.sleep(5)
        assert list(eu.statistics().neighbours) == [honest.id]
        assert not ap.statistics().neighbours
        await honest.publish("news.today", "it rains")
        await evil.publish("news.today", "it does not")
        with trio.fail_after(5):
            assert (await anext(events)).payload == "it rains"
        await trio.sleep(2)
        assert events.statistics().received == 1
