"""Dials between gateways: again and again, and never without a pause."""

from __future__ import annotations

import itertools

import trio
from trio.testing import MockClock

from tests.support.federations import Federation, open_federation


async def link_two(federation: Federation) -> list[float]:
    """Have us dial eu; return when it has begun to, which grows with each attempt."""
    await federation.gateway("eu")
    us = await federation.gateway("us", to=["eu-gateway"])
    await us.wait_for_site("eu")
    await trio.sleep(60)
    begun: list[float] = []
    connect = us._between.connect

    async def noted(*args: object, **options: object) -> object:
        begun.append(trio.current_time())
        return await connect(*args, **options)  # type: ignore[arg-type]

    us._between.connect = noted  # type: ignore[assignment]
    return begun


def pauses(begun: list[float]) -> list[float]:
    return [round(later - earlier, 2) for earlier, later in itertools.pairwise(begun)]


async def test_a_neighbour_that_has_gone_is_dialled_at_once_and_then_ever_more_rarely(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        begun = await link_two(federation)
        federation.crash("eu-gateway")
        await trio.sleep(60)
        assert begun
        assert pauses(begun)[:4] == [0.25, 0.5, 1.0, 2.0]
        assert set(pauses(begun)[4:]) == {5.0}


async def test_who_lets_others_in_and_sends_them_away_is_not_dialled_without_end(
    autojump_clock: MockClock,
) -> None:
    async with open_federation() as federation:
        begun = await link_two(federation)
        between = federation.gateways["eu-gateway"]._between
        end = trio.current_time() + 100
        links = 0
        while trio.current_time() < end:
            for node in list(between.peers):
                between.drop(node, "go away")
                links += 1
            await trio.sleep(0.01)
        assert len(begun) <= 40
        assert 5 <= links <= 200, "of the 10,000 that could be made and ended in this time"
        await trio.sleep(60)
        (us,) = between.peers
        await trio.sleep(30)
        between.drop(us, "once more")
        await trio.sleep(1)
        assert us in between.peers, "a link that has lasted is made again at once"
