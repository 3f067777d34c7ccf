"""A node that nobody lets in: how often it dials, and when it is back."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
import iris.testing
from iris.cluster.membership.proofs import proof_of
from iris.node.open import OpenNode
from iris.security.identity.revocation import issue_revocations
from iris.testing import Network
from tests.node.credentials.test_further_clusters import DAY, short_lived

OTHERS = 6
MINUTE = 60.0
LONGEST = 120.0


class Date:
    """The date as one host sees it."""

    def __init__(self, network: Network) -> None:
        self._right = network.wall_clock
        self.ahead = 0.0

    def __call__(self, host: str) -> float:
        return self._right(host) + (self.ahead if host == "late" else 0.0)


@asynccontextmanager
async def open_realm(network: Network) -> AsyncIterator[tuple[list[iris.Node], OpenNode]]:
    """Open a realm, and a node of another cluster at the host ``late``."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(network.open_node("shop")) for _ in range(OTHERS)]
        late = await stack.enter_async_context(network.open_parts("stolen", host="late"))
        yield nodes, late


def handshakes_from(network: Network) -> Counter[str]:
    """Count the first frames of handshakes from now on: those of the host ``late``, and those of others to it."""
    begun: Counter[str] = Counter()

    def observe(source: str, target: str, size: int, _fate: str) -> None:
        if 1000 < size < 2000 and "late" in (source, target):
            begun["late" if source == "late" else "others"] += 1

    network.memory.observer = observe
    return begun


def renew(network: Network, late: OpenNode) -> None:
    """Have a node use a credential of the next generation, as when its file is replaced."""
    parts = late.parts
    credential = short_lived(network, "stolen", DAY, generation=2)
    parts.mesh.renew_identity(credential.renew_identity(parts.mesh.identity, network.wall_clock()))
    parts.membership.renew_proof(proof_of(parts.mesh.identity.certificate, parts.mesh.identity.delegation))


async def test_a_revoked_node_dials_less_and_less_often_until_it_has_another_credential(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with iris.testing.open_network() as network, open_realm(network) as (nodes, late):
        begun = handshakes_from(network)
        revoked = issue_revocations(
            network.root, number=1, issued=network.wall_clock(), clusters={"stolen": 2}, nodes={}
        )
        assert await nodes[0].revoke(revoked.signed)
        await trio.sleep(MINUTE)
        assert begun["late"] < 100
        begun.clear()
        await trio.sleep(5 * MINUTE)
        assert begun["late"] < 30, "a few each two minutes"
        assert begun["others"] < 30
        assert sum("nobody talks to this node any more" in record.getMessage() for record in caplog.records) == 1
        assert not [record for record in caplog.records if "trying again" in record.getMessage()]
        renew(network, late)
        await trio.sleep(10)
        assert late.node.statistics().links


async def test_a_node_whose_date_is_wrong_dials_less_and_less_often_until_it_is_right(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with iris.testing.open_network() as network:
        date = Date(network)
        monkeypatch.setattr(network, "wall_clock", date)
        async with open_realm(network) as (_, late):
            begun = handshakes_from(network)
            date.ahead = 3 * DAY
            await trio.sleep(4 * MINUTE)
            begun.clear()
            await trio.sleep(5 * MINUTE)
            assert begun["late"] < 50
            assert begun["others"] < 30 * OTHERS, "each of them backs off by itself"
            assert not late.node.statistics().links
            said = sum("nobody lets this node in" in record.getMessage() for record in caplog.records)
            assert 1 <= said <= 3, "once for each of its credentials"
            date.ahead = 0.0
            await trio.sleep(LONGEST + 10)
            assert late.node.statistics().links
