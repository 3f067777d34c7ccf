"""Exports of a gateway from its own site, change by change: as if all were computed anew with each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.directory import CLUSTER, COMPANION, TOPIC, Export
from iris.federation.own_exports import SharedRoom, SiteContents
from iris.kernel.names import NodeId

A, B = NodeId("aa"), NodeId("bb")
PLACES, WEIGHT = 8, 9_000


def entry(node: int, number: int) -> Export:
    """Return an entry of a node; those with high numbers weigh more."""
    return Export(CLUSTER, f"c{number}" + "x" * (100 * number), NodeId(f"{node:032x}"))


@given(steps=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=8), max_size=12))
def test_what_is_exported_fits_and_is_shared_evenly_after_each_change(steps: list[list[tuple[int, int]]]) -> None:
    room = SharedRoom(PLACES, WEIGHT)
    wanted: set[Export] = set()
    exported: set[Export] = set()
    for step in steps:
        toggled = {entry(*one) for one in step}
        more, less = room.change(toggled - wanted, toggled & wanted)
        wanted ^= toggled
        assert exported.isdisjoint(more)
        assert exported.issuperset(less)
        exported = (exported | {*more}) - {*less}
        assert exported <= wanted
        assert len(exported) <= PLACES
        assert sum(one.weight for one in exported) <= WEIGHT
        assert room.cut == len(wanted) - len(exported)
        if len(wanted) <= PLACES and sum(one.weight for one in wanted) <= WEIGHT:
            assert exported == wanted
        for waits in wanted - exported:
            mine = sum(one.weight for one in exported if one.node == waits.node)
            count = sum(one.node == waits.node for one in exported)
            for node in {one.node for one in exported} - {waits.node}:
                theirs = [one for one in exported if one.node == node]
                heaviest = entry(0, 6).weight
                share = max(len(theirs) / PLACES, sum(one.weight for one in theirs) / WEIGHT)
                assert share <= max((count + 2) / PLACES, (mine + 2 * heaviest) / WEIGHT), "but for two entries"


def test_a_node_that_wants_very_much_gives_way_to_those_that_come_later() -> None:
    room = SharedRoom(20, 10**9)
    greedy = [Export(TOPIC, f"t{number}", A) for number in range(1_000)]
    room.change(greedy, ())
    more, less = room.change([Export(TOPIC, "orders.>", B)], ())
    assert more == (Export(TOPIC, "orders.>", B),)
    assert len(less) == 1
    assert room.cut == 981
    more, less = room.change((), greedy[:900])
    assert room.cut == 1_001 - 900 - 20
    assert {one.node for one in more} == {A}


class Rules:
    """Rules of a site that exports all clusters but a secret one, and subscriptions by other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def may_export(self, cluster: str) -> bool:
        return cluster != "secret"

    def wanted(self, pattern: str) -> str | None:
        return self._names.get(pattern)


def test_what_stands_for_one_export_twice_goes_with_the_last_of_it() -> None:
    site = SiteContents(Rules({"twice/orders": "orders", "orders": "orders"}))
    site.subscribe(A, "orders", 1)
    site.subscribe(A, "orders", 1)
    site.subscribe(A, "twice/orders", 1)
    site.place(B, {"store": b"1", "secret": b"2"})
    site.accompany([B])
    added, removed = site.pop_changes()
    assert {*added} == {Export(TOPIC, "orders", A), Export(CLUSTER, "store", B, b"1"), Export(COMPANION, "", B)}
    assert removed == ()
    site.subscribe(A, "orders", -1)
    site.subscribe(A, "twice/orders", -1)
    site.subscribe(B, "never", -1)
    assert site.pop_changes() == ((), ())
    site.subscribe(A, "orders", -1)
    site.place(B, {"store": b"3"})
    added, removed = site.pop_changes()
    assert added == (Export(CLUSTER, "store", B, b"3"),)
    assert {*removed} == {Export(TOPIC, "orders", A), Export(CLUSTER, "store", B, b"1")}
    site.place(B, {})
    site.accompany([])
    assert {*site.pop_changes()[1]} == {Export(CLUSTER, "store", B, b"3"), Export(COMPANION, "", B)}


def test_subscriptions_are_shown_otherwise_after_they_were_examined_again() -> None:
    aliases = {"acme/x": "one/x"}
    site = SiteContents(Rules(aliases))
    site.subscribe(A, "acme/x", 1)
    site.subscribe(A, "other/x", 1)
    assert site.pop_changes() == ((Export(TOPIC, "one/x", A),), ())
    aliases.update({"acme/x": "two/x", "other/x": "three/x"})
    site.examine()
    added, removed = site.pop_changes()
    assert {*added} == {Export(TOPIC, "two/x", A), Export(TOPIC, "three/x", A)}
    assert removed == (Export(TOPIC, "one/x", A),)
    aliases.clear()
    site.subscribe(A, "acme/x", -1)
    assert site.pop_changes() == ((), (Export(TOPIC, "two/x", A),))
