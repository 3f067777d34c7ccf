"""Number of records kept of each cluster's key, and the records that make room."""

from __future__ import annotations

from msgspec import structs

from iris.cluster.swim.context import Changed, Rejected
from iris.cluster.swim.record_quota import RecordQuota
from iris.cluster.swim.records import MemberState, NodeRecord
from iris.cluster.swim.swim import Swim
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.membership import HashTrust, Links, changes, gossip, machine, node, record, run

FULL = "more records of one cluster's key than records_per_cluster_key"


def made_up(number: int, name: str = "bad", *, incarnation: int = 1, leaving: bool = False) -> NodeRecord:
    bare = NodeRecord(node=node(number), name=name, incarnation=incarnation, leaving=leaving)
    return structs.replace(bare, signature=HashTrust(bare.node).sign(bare.statement()))


def alive(swim: Swim, name: str) -> set[NodeId]:
    view = swim._context.view
    return {entry.node for entry in view.records() if entry.name == name}


def test_each_key_has_so_many_and_what_is_forgotten_makes_room() -> None:
    quota = RecordQuota(2)
    quota.add(node(1), b"one")
    assert not quota.is_full(b"one")
    quota.add(node(2), b"one")
    assert quota.is_full(b"one")
    assert not quota.is_full(b"two")
    assert quota.first(b"one", lambda _: True) == node(1)
    assert quota.first(b"one", node(2).__eq__) == node(2)
    assert quota.first(b"two", lambda _: True) is None
    quota.discard(node(1))
    quota.discard(node(1))
    assert not quota.is_full(b"one")
    quota.discard(node(2))
    assert repr(quota) == "<RecordQuota: 0 records of 0 keys>"


def test_whoever_makes_up_thousands_leaves_room_for_the_members_of_other_clusters() -> None:
    swim = machine(0, config=Config(member_limit=100, records_per_cluster_key=60))
    refused = [
        effect
        for number in range(1000, 3000)
        for effect in gossip(swim, made_up(number))
        if isinstance(effect, Rejected)
    ]
    assert [effect.reason for effect in refused] == [FULL], "it is told once"
    assert swim.statistics().rejected == {FULL: 1940}
    gossip(swim, *(record(number) for number in range(1, 41)))
    assert alive(swim, "databases") == {node(number) for number in range(1, 41)}


def test_those_of_a_key_that_are_gone_make_room_and_nobody_of_another_key_does() -> None:
    swim = machine(0, config=Config(records_per_cluster_key=3))
    gossip(swim, record(1), record(2))
    gossip(swim, record(2, incarnation=2, leaving=True))
    for number in range(10, 30):
        gossip(swim, made_up(number))
        gossip(swim, made_up(number, incarnation=2, leaving=True))
    assert [swim.state(node(number)) for number in (1, 2)] == [MemberState.ALIVE, MemberState.LEFT]
    assert [number for number in range(10, 30) if swim.state(node(number)) is not None] == [27, 28, 29]
    assert swim.statistics().rejected == {}


def test_those_that_leave_as_they_come_do_not_pile_up() -> None:
    swim = machine(0, config=Config(records_per_cluster_key=3))
    for number in range(10, 300):
        gossip(swim, made_up(number, leaving=True))
    assert len(swim._context.view.gone) == 3


def test_for_a_member_that_is_linked_one_goes_that_is_not() -> None:
    links = Links()
    swim = machine(0, config=Config(records_per_cluster_key=3), links=links)
    links.linked = {node(1), node(2)}
    gossip(swim, made_up(2, "databases"), made_up(10, "databases"), made_up(11, "databases"))
    tell = kinds.State(False, (record(1).as_update(),))
    assert Rejected(sender=node(3), reason=FULL) in swim.receive(tell, node(3), 0.0), "another one's word"
    effects = swim.receive(tell, node(1), 0.0)
    assert changes(effects) == [
        (node(10), MemberState.DEAD, "expelled"),
        (node(1), MemberState.ALIVE, ""),
    ]
    assert alive(swim, "databases") == {node(1), node(2), node(11)}
    assert swim.state(node(10)) is None
    run(swim, 10.0, deaf=False)


def test_if_all_are_linked_nobody_goes() -> None:
    swim = machine(0, config=Config(records_per_cluster_key=2))
    gossip(swim, record(1), record(2))
    effects = swim.receive(kinds.State(False, (record(3).as_update(),)), node(3), 0.0)
    assert not any(isinstance(effect, Changed) for effect in effects)
    assert swim.statistics().rejected == {FULL: 1}


def test_a_record_that_is_not_believed_makes_nobody_go() -> None:
    links = Links()
    links.linked = set()
    swim = machine(0, config=Config(records_per_cluster_key=2), links=links)
    gossip(swim, record(1), record(2))
    forged = structs.replace(record(3), signature=b"")
    swim.receive(kinds.State(False, (forged.as_update(),)), node(3), 0.0)
    assert alive(swim, "databases") == {node(1), node(2)}
    gossip(swim, record(2, incarnation=2, leaving=True))
    gossip(swim, forged)
    assert swim.state(node(2)) is MemberState.LEFT
