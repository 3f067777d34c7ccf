"""While gateways find each other routes come, go and are replaced: who is asked then is never missing silently."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.federations import echo, open_federation

SITES = ("eu", "us", "ap", "sa")


@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_of_known_members_each_answers_or_is_in_the_errors_while_a_ring_forms(
    autojump_clock: MockClock, pause: float
) -> None:
    silent: list[tuple[float, str]] = []
    failed: list[float] = []
    surveys = 0
    scope = trio.CancelScope()

    async def survey_all_the_time(shop: iris.Node) -> None:
        nonlocal surveys
        with scope:
            while True:
                known = {member.node: member.site for member in shop.members("store")}
                async with shop.survey("store", b"?", timeout=5.0) as answers:
                    heard = {answer.member async for answer in answers}
                surveys += 1
                now = trio.current_time()
                silent.extend((now, known[node]) for node in known.keys() - heard - answers.errors.keys())
                failed.extend(now for _ in answers.errors)
                await trio.sleep(0.02)

    async with open_federation() as federation:
        for site in SITES:
            await federation.member(site, echo("store"))
        shop = await federation.node("us", "shop", seeds=["us-store"])
        await shop.wait_for("store")
        federation.nursery.start_soon(survey_all_the_time, shop)
        for site, following in zip(SITES, (*SITES[1:], SITES[0]), strict=True):
            await federation.gateway(site, to=[f"{following}-gateway"])
            await trio.sleep(pause)
        await federation.wait_for_sites(*SITES)
        formed = trio.current_time()
        await trio.sleep(2.0)
        scope.cancel()
        assert surveys > 50
        assert len(shop.members("store")) == len(SITES)
    assert silent == []
    assert [late for late in failed if late > formed + 0.5] == []
