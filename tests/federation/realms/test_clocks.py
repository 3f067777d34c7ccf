"""Two owners whose clocks differ by more than nodes bear, and frames that are forged on the way between them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from iris.cli.operators.doctor.realms import examine_realms
from iris.kernel import wire
from iris.kernel.errors import NoSuchCluster
from tests.support.federations import echo, reports_of
from tests.support.two_realms import Realms, open_realms


async def link_apart(realms: Realms, listening: float, dialling: float) -> None:
    realms.introduce()
    await trio.sleep(3600)  # the bundles are not of today
    for host in ("gateway", "prices"):
        realms.theirs.network.offsets[f"acme-eu-{host}"] = listening
    for host in ("gateway", "shop"):
        realms.ours.network.offsets[f"eu-{host}"] = dialling
    await realms.link()
    await realms.theirs.member("eu", echo("prices"))
    await trio.sleep(20)


@pytest.mark.parametrize("offsets", [(-400.0, 0.0), (0.0, -400.0)])
async def test_clocks_that_are_apart_are_said_by_whoever_sees_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, offsets: tuple[float, float]
) -> None:
    async with open_realms() as realms:
        await link_apart(realms, *offsets)
        (said,) = reports_of(caplog, "check the clocks")
        assert "valid only in 100 s" in said
        listening, dialling = realms.theirs.gateways["acme-eu-gateway"], realms.ours.gateways["eu-gateway"]
        if offsets[0]:
            assert "has dialled and is not linked" in said
            assert listening.statistics().rejected["OutOfDate"] >= 1
        (reason,) = dialling.statistics().unreached.values()
        assert "clock" in reason
        shop = await realms.ours.node("eu", "shop")
        with pytest.raises(NoSuchCluster) as error:
            await shop.request("acme/prices", 1)
        assert "the clocks of the two may differ" in " ".join(error.value.__notes__)
        (finding,) = examine_realms(shop)
        assert (finding.level, finding.code) == ("warning", "realm-unlinked")
        assert "clocks" in finding.cause


async def test_realms_that_are_linked_are_found_so_and_nothing_is_unreached(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        await link_apart(realms, 100.0, -100.0)
        shop = await realms.ours.shop("eu", "acme/prices")
        assert [finding.code for finding in examine_realms(shop)] == ["realm-ok"]
        assert realms.ours.gateways["eu-gateway"].statistics().unreached == {}


async def test_forged_frames_between_owners_are_in_the_statistics_of_the_gateway(autojump_clock: MockClock) -> None:
    async with open_realms() as realms:
        realms.introduce()
        await realms.link()
        await realms.shop(echo("prices"))
        ours, theirs = realms.ours.gateways["eu-gateway"], realms.theirs.gateways["acme-eu-gateway"]
        (peer,) = realms.between[theirs].peers.values()
        before = sum(ours.statistics().rejected.values())
        outgoing = peer.link.outgoing
        assert outgoing is not None
        for number in range(7):
            outgoing.send_nowait(bytes((wire.DATA, 1)) + bytes(30) + bytes([number]) * 60)
            await trio.sleep(0.1)
        await trio.sleep(1)
        assert sum(ours.statistics().rejected.values()) - before == 7
