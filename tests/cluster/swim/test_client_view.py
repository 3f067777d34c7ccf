"""The view of a client: whom it asks, what it believes, and when it takes a member for dead."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from msgspec import structs

from iris.cluster.swim.client_view import MAX_LOOKED_UP, ClientView, view_hash
from iris.cluster.swim.context import Changed, Effect, Routable, SwimPorts, Synchronized
from iris.cluster.swim.records import ClusterEntry, MemberState, NodeRecord
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.membership import HashTrust, Links, Work, changes, node, record, said, sends

ME, CONTACT, OTHER = 0, 100, 101
PROBE = Config().probe_timeout


def view(*contacts: int, trust: HashTrust | None = None) -> ClientView:
    """Return a client's view that knows nobody; these nodes are linked."""
    links = Links()
    links.linked = {node(number) for number in contacts}
    return ClientView(
        record=NodeRecord(node=node(ME), name="shop"),
        ports=SwimPorts(trust=trust or HashTrust(node(ME)), links=links, workload=Work()),
        config=Config(),
        random=Random(1),
        now=0.0,
    )


def serving(number: int, *, incarnation: int = 1, clusters: Iterable[str] = ("store",)) -> NodeRecord:
    """Return a signed record of a member that serves some clusters."""
    bare = structs.replace(
        record(number, incarnation=incarnation), clusters=tuple(ClusterEntry(name=name) for name in clusters)
    )
    return structs.replace(bare, signature=HashTrust(bare.node).sign(bare.statement()))


def asked(effects: list[Effect]) -> tuple[NodeId, kinds.Lookup]:
    """Return the one question among some effects, and to whom it goes."""
    (send,) = sends(effects, kinds.Lookup)
    question = said(send)
    assert isinstance(question, kinds.Lookup)
    return send.node, question


def answer(me: ClientView, *records: NodeRecord, effects: list[Effect], now: float = 0.0) -> list[Effect]:
    """Have the contact answer the question among ``effects``."""
    contact, question = asked(effects)
    updates = tuple(one.as_update() for one in records)
    return me.receive(kinds.Found(question.sequence, True, True, updates), contact, now)


def found(me: ClientView, *numbers: int, now: float = 0.0) -> list[Effect]:
    """Look ``store`` up, and find these."""
    return answer(me, *map(serving, numbers), effects=me.look("store", now), now=now)


def routes(effects: list[Effect]) -> list[tuple[NodeId, bool]]:
    return [(effect.node, effect.open) for effect in effects if isinstance(effect, Routable)]


def test_members_are_reported_when_the_answer_is_whole() -> None:
    me = view(CONTACT)
    contact, question = asked(me.look("store", 0.0))
    assert (contact, question.cluster) == (node(CONTACT), "store")
    first = kinds.Found(question.sequence, True, False, (serving(1).as_update(),))
    assert me.receive(first, contact, 0.1) == []
    last = kinds.Found(question.sequence, True, True, (serving(2).as_update(),))
    effects = me.receive(last, contact, 0.2)
    assert {who for who, *_ in changes(effects)} == {node(1), node(2)}
    assert isinstance(effects[-1], Synchronized)
    assert set(me.listed("store")) == {node(1), node(2)}
    assert me.answered("store") == 0.2


def test_what_was_answered_lately_is_not_asked_again() -> None:
    me = view(CONTACT)
    found(me, 1, now=10.0)
    assert me.look("store", 12.0, again_after=5.0) == []
    assert sends(me.look("store", 15.0, again_after=5.0), kinds.Lookup)
    assert me.look("store", 15.1) == [], "it is in progress"


def test_a_question_names_what_is_known_and_nothing_follows_if_that_is_all() -> None:
    me = view(CONTACT)
    found(me, 1, 2)
    contact, question = asked(me.look("store", 9.0))
    assert question.known == view_hash([serving(2), serving(1)])
    effects = me.receive(kinds.Found(question.sequence, False, True, ()), contact, 9.1)
    assert effects == [Synchronized(node=contact)]
    assert set(me.listed("store")) == {node(1), node(2)}


def test_a_question_without_an_answer_is_put_to_another_node() -> None:
    me = view(CONTACT, OTHER)
    first, question = asked(me.look("store", 0.0))
    second, again = asked(me.expire(me.deadline))
    assert {first, second} == {node(CONTACT), node(OTHER)}
    assert again.sequence == question.sequence
    late = kinds.Found(question.sequence, True, True, (serving(1).as_update(),))
    assert me.receive(late, first, 1.1) == [], "only who was asked last is listened to"
    assert changes(me.receive(late, second, 1.2)) == [(node(1), MemberState.ALIVE, "")]


def test_what_nobody_could_be_asked_is_asked_when_somebody_is_linked() -> None:
    me = view()
    assert me.look("store", 0.0) == []
    contact, question = asked(me.join([node(CONTACT)], 0.5))
    assert (contact, question.cluster) == (node(CONTACT), "store")


def test_who_is_listed_no_more_and_answers_has_left() -> None:
    me = view(CONTACT)
    found(me, 1, 2)
    effects = found(me, 2, now=10.0)
    assert changes(effects) == [(node(1), MemberState.LEFT, "")]
    (probe,) = sends(effects, kinds.Probe)
    assert probe.node == node(1)
    question = said(probe)
    assert isinstance(question, kinds.Probe)
    assert me.receive(kinds.ProbeAnswer(question.sequence, 0, ()), node(1), 10.1) == []
    assert me.state(node(1)) is None


def test_who_is_listed_no_more_and_does_not_answer_is_dead() -> None:
    me = view(CONTACT)
    found(me, 1, 2)
    found(me, 2, now=10.0)
    assert changes(me.expire(10.0 + 2 * PROBE)) == [(node(1), MemberState.DEAD, "silent")]


def test_who_serves_another_cluster_that_was_asked_for_stays() -> None:
    me = view(CONTACT)
    both = serving(1, clusters=("store", "shelf"))
    answer(me, both, effects=me.look("store", 0.0))
    answer(me, both, effects=me.look("shelf", 0.0))
    assert changes(answer(me, effects=me.look("store", 9.0), now=9.0)) == []
    assert me.state(node(1)) is MemberState.ALIVE


def test_a_member_that_owes_an_answer_and_answers_no_probe_gets_no_work_until_it_does() -> None:
    me = view(CONTACT)
    found(me, 1)
    assert len(sends(me.doubt(node(1), 5.0), kinds.Probe)) == 1
    assert me.doubt(node(1), 5.1) == [], "it is asked already"
    assert routes(me.expire(5.0 + 2 * PROBE)) == [(node(1), False)]
    (probe,) = sends(me.expire(me.deadline), kinds.Probe)
    question = said(probe)
    assert isinstance(question, kinds.Probe)
    effects = me.receive(kinds.ProbeAnswer(question.sequence, 0, ()), node(1), 7.0)
    assert routes(effects) == [(node(1), True)]


def test_a_client_that_is_late_itself_waits_longer_for_the_answer_to_a_probe() -> None:
    me = view(CONTACT)
    found(me, 1)
    me.look("shelf", 4.0)
    me.expire(me.deadline + 0.3)
    me.doubt(node(1), 6.0)
    assert routes(me.expire(6.0 + 2 * PROBE)) == []
    assert routes(me.expire(6.0 + 2 * PROBE + 2 * 0.3)) == [(node(1), False)]


@pytest.mark.parametrize("event", ["broken", "refused"])
def test_a_link_that_breaks_closes_the_route_and_has_the_cluster_asked_for_again(event: str) -> None:
    me = view(CONTACT)
    found(me, 1, now=1.0)
    effects = me.broken(node(1), 2.0) if event == "broken" else me.refused(node(1), 2.0)
    assert routes(effects) == [(node(1), False)]
    assert sends(me.look("store", 2.0, again_after=5.0), kinds.Lookup)


def test_a_record_is_believed_if_its_subject_signed_it() -> None:
    me = view(CONTACT)
    forged = structs.replace(serving(1), addresses=("tcp://192.0.2.1:1",))
    effects = answer(me, forged, serving(2), effects=me.look("store", 0.0))
    assert [who for who, *_ in changes(effects)] == [node(2)]
    assert me.rejected == {"a record that its subject did not sign": 1}


def test_a_record_of_somebody_else_is_no_answer() -> None:
    me = view(CONTACT)
    effects = answer(me, serving(1, clusters=("shelf",)), effects=me.look("store", 0.0))
    assert changes(effects) == []
    assert sum(me.rejected.values()) == 1


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    me = view(CONTACT)
    answer(me, serving(1, incarnation=3), effects=me.look("store", 0.0))
    assert changes(answer(me, serving(1, incarnation=2), effects=me.look("store", 9.0), now=9.0)) == []
    held = me.record(node(1))
    assert held is not None
    assert held.incarnation == 3


def test_what_was_not_asked_for_is_not_taken() -> None:
    me = view(CONTACT)
    for message in (
        kinds.Gossip((serving(1).as_update(),)),
        kinds.State(True, (serving(1).as_update(),)),
        kinds.Probe(1, 0, 1, ()),
        kinds.Found(7, True, True, (serving(1).as_update(),)),
    ):
        assert changes(me.receive(message, node(CONTACT), 0.0)) == []
    assert me.rejected == {"a client is told of members only what it has asked for": 3}


def test_who_is_revoked_is_forgotten_and_others_are_asked_for() -> None:
    trust = HashTrust(node(ME))
    me = view(CONTACT, trust=trust)
    found(me, 1, 2)
    trust.expelled.add(node(1))
    assert changes(me.recheck(3.0)) == [(node(1), MemberState.DEAD, "expelled")]
    assert me.record(node(1)) is None
    assert sends(me.look("store", 3.0, again_after=5.0), kinds.Lookup)


def test_a_client_asks_for_a_bounded_number_of_clusters() -> None:
    me = view()
    for number in range(MAX_LOOKED_UP):
        me.look(f"c{number}", 0.0)
    with pytest.raises(ConfigError, match="asks for at most 1024 clusters, and 'more' is one more"):
        me.look("more", 0.0)
    assert me.look("c0", 0.0) == []


def test_nobody_is_told_anything_of_a_client() -> None:
    me = view(CONTACT)
    assert me.update_self(1.0, clusters=(ClusterEntry(name="shop"),)) == []
    assert me.leave(2.0) == []
    assert me.settled
    assert not [effect for effect in found(me, 1, now=3.0) if not isinstance(effect, Changed | Synchronized)]
