"""Distance of a realm of many bridges from its limits: the arithmetic, and that each unit cost can be measured."""

from __future__ import annotations

import pytest

from benchmarks.bridge.growth import Realm, UnitCosts, loads, measure
from benchmarks.membership import clients

COSTS = UnitCosts(gossip=4.0, death=0.5, handshake=0.0003, index=0.1, opening=0.1)


def realm(**counts: int) -> Realm:
    return Realm(**({"bridges": 100, "publishers": 50, "readers": 1000, "queries": 10} | counts), rate=1e6)


def test_open_files_come_first_and_gossip_last() -> None:
    by_share = sorted(loads(realm(), COSTS), key=lambda load: load.share)
    assert by_share[-1].what.startswith("files open, as systems allow")
    assert by_share[-1].share > 2
    assert "gossip" in by_share[0].what


@pytest.mark.parametrize(("more", "what"), [("readers", "memory for links"), ("queries", "events read by session")])
def test_a_bridge_uses_more_where_there_are_more(more: str, what: str) -> None:
    few, many = ({load.what: load.share for load in loads(of, COSTS)} for of in (realm(), realm(**{more: 10_000})))
    (name,) = (name for name in few if what in name)
    assert many[name] > 5 * few[name]


def test_what_each_thing_costs_is_measured() -> None:
    costs = measure(realm(bridges=5, publishers=5, readers=0), 100_000, handshakes=1)
    assert 3.5 < costs.gossip < 4.5
    assert 0 < costs.death < 2
    assert 0 < costs.handshake < 0.1
    assert 0 < costs.index < 10


@pytest.mark.long
def test_readers_are_measured_as_clients_and_as_members(capfd: pytest.CaptureFixture[str]) -> None:
    for client in (True, False):
        clients.compare(4, 2, 0.2, client=client)
    printed = capfd.readouterr().out
    assert printed.count("4 reading") == 2
