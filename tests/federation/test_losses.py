"""A gateway that drops or repeats frames all the time is reported by the nodes that the frames are for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.mesh.peer import Peer
from iris.cluster.sites import reports as site_losses
from iris.cluster.sites.reports import BAD
from tests.support.federations import echo, open_federation, reports_of

HandOn = Callable[[Peer, bytes | memoryview], None]
Misuse = Callable[[HandOn, Peer, bytes | memoryview], None]


def drop(hand_on: HandOn, peer: Peer, batch: bytes | memoryview) -> None:
    pass


def repeat(hand_on: HandOn, peer: Peer, batch: bytes | memoryview) -> None:
    hand_on(peer, bytes(batch))
    hand_on(peer, batch)


@pytest.mark.parametrize("what", [drop, repeat])
async def test_a_gateway_that_does_it_again_and_again_is_reported_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: Misuse
) -> None:
    monkeypatch.setattr(site_losses, "WINDOW", 1.0)
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        gateway = federation.gateways["us-gateway"]
        between, carrying = gateway._between, gateway._carrying
        take = carrying.examine_from_gateway
        replies = answered = 0

        def hand_on(peer: Peer, batch: bytes | memoryview) -> None:
            if not take(peer, batch):
                between._receivers.dispatch_untrusted(peer, batch)

        def misuse(peer: Peer, batch: bytes | memoryview) -> bool:
            nonlocal replies
            is_reply = batch[:3] == b"\x91\x97\x60"
            replies += is_reply
            if is_reply and replies % 3 == 0:
                what(hand_on, peer, batch)
            else:
                hand_on(peer, batch)
            return True

        async def ask(number: int) -> None:
            nonlocal answered
            await trio.sleep(number * 0.05)  # so that each reply travels alone
            while True:
                with contextlib.suppress(iris.IrisError):
                    answered += await shop.request("store", 1, timeout=1)
                await trio.sleep(0.3)

        await shop.request("store", 1, timeout=5)  # the first one waits for a link, and the next ones for each other
        carrying.examine_from_gateway = misuse  # type: ignore[method-assign]
        with trio.move_on_after(BAD + 4):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(ask, number)
        assert answered > 20
        (report,) = reports_of(caplog, "all the time")
        assert "from site 'eu' " in report
