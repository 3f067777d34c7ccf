"""The roster: which node serves which cluster, and the reports of it to users."""

from __future__ import annotations

from msgspec import structs

from iris.cluster.membership.roster import Change, Roster
from iris.cluster.swim.context import Changed
from iris.cluster.swim.records import ClusterEntry, MemberState
from tests.support.membership import node, record


def changed(
    number: int, *clusters: str, state: MemberState = MemberState.ALIVE, draining: bool = False, evidence: str = ""
) -> Changed:
    entries = tuple(ClusterEntry(name=name, draining=draining) for name in clusters)
    return Changed(
        node=node(number),
        state=state,
        record=structs.replace(record(number, site="eu"), clusters=entries),
        evidence=evidence,
    )


def kinds(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.cluster) for change in changes]


def test_a_node_joins_and_leaves_clusters_with_its_record() -> None:
    roster = Roster()
    assert kinds(roster.apply(changed(1, "b", "a"))) == [("joined", "a"), ("joined", "b")]
    assert kinds(roster.apply(changed(1, "b", "c"))) == [("left", "a"), ("joined", "c")]
    assert roster.clusters() == ("b", "c")
    assert kinds(roster.apply(changed(1))) == [("left", "b"), ("left", "c")]
    assert roster.clusters() == ()
    assert roster.members("b") == ()


def test_members_are_listed_with_what_is_known_of_them() -> None:
    roster = Roster()
    for number in (3, 1):
        roster.apply(changed(number, "a"))
    roster.load(node(3), 0.5)
    first, second = roster.members("a")
    assert (first.node, first.site, first.speaks_for, first.status) == (node(1), "eu", "databases", "alive")
    assert (second.node, second.queue_delay) == (node(3), 0.5)


def test_states_become_events_and_repetitions_none() -> None:
    roster = Roster()
    roster.apply(changed(1, "a"))
    assert roster.apply(changed(1, "a")) == []
    assert kinds(roster.apply(changed(1, "a", state=MemberState.SUSPECT))) == [("suspected", "a")]
    assert roster.apply(changed(1, "a", state=MemberState.SUSPECT, evidence="refused")) == []
    assert kinds(roster.apply(changed(1, "a"))) == [("recovered", "a")]
    assert kinds(roster.apply(changed(1, "a", draining=True))) == [("draining", "a")]
    assert kinds(roster.apply(changed(1, "a", state=MemberState.DEAD))) == [("lost", "a")]
    assert roster.apply(changed(1, "a", state=MemberState.DEAD)) == []


def test_a_farewell_is_no_loss() -> None:
    roster = Roster()
    roster.apply(changed(1, "a"))
    assert kinds(roster.apply(changed(1, state=MemberState.LEFT))) == [("left", "a")]


def test_load_is_told_when_it_moves_and_survives_other_changes() -> None:
    roster = Roster()
    roster.apply(changed(1, "a", "b"))
    assert kinds(roster.load(node(1), 0.5)) == [("load", "a"), ("load", "b")]
    assert roster.load(node(1), 0.55) == []
    roster.apply(changed(1, "a", "b", state=MemberState.SUSPECT))
    assert roster.members("a")[0].queue_delay == 0.5
    assert roster.load(node(2), 9.0) == [], "nobody knows it"
