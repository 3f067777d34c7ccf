"""Joining, records, and how views become one."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from iris.cluster.swim.context import Changed, Effect, Rejected, Send, Synchronized
from iris.cluster.swim.gossip import Renewal, updates_untrusted
from iris.cluster.swim.records import MemberState, NodeRecord
from iris.cluster.swim.swim import Swim
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.cluster.swim.test_confirmations import dead_member
from tests.support.membership import (
    HashTrust,
    changes,
    claim,
    gossip,
    knowing,
    machine,
    node,
    record,
    run,
    said,
    sends,
    told,
    updates_in,
)
from tests.support.messages import fields_of


def _passed_on(swim: Swim, about: NodeRecord, effects: list[Effect]) -> Counter[object]:
    return Counter(
        type(send.message)
        for send in sends(effects)
        if type(send.message) is not kinds.Sync and about in updates_in(send)
    )


def _tell_of_itself(swim: Swim, about: NodeRecord) -> list[Effect]:
    effects = swim.receive(kinds.State(False, (about.as_update(),)), about.node, 10.0)
    return effects + [effect for _, effect in run(swim, 20.0, deaf=False)]


@pytest.mark.parametrize("heard_of_before", [False, True])
def test_news_that_its_subject_tells_everybody_is_passed_on_in_one_round_and_then_rides_along(
    heard_of_before: bool,
) -> None:
    swim = knowing(1, 2, 3, 4, 5)
    run(swim, 10.0, deaf=False)
    if heard_of_before:
        gossip(swim, record(9), sender=2, now=10.0)
        swim.receive(kinds.State(False, (record(9).as_update(),)), node(9), 10.0)
    passed_on = _passed_on(swim, record(9), _tell_of_itself(swim, record(9)))
    assert passed_on == Counter({kinds.Gossip: 0 if heard_of_before else 3, kinds.Probe: 4})


def test_a_change_that_its_subject_tells_everybody_only_rides_along() -> None:
    swim = knowing(1, 2, 3, 4, 5)
    run(swim, 10.0, deaf=False)
    assert _passed_on(swim, record(1, incarnation=2), _tell_of_itself(swim, record(1, incarnation=2))) == {
        kinds.Probe: 4
    }


@pytest.mark.parametrize("suspected", [True, False])
def test_what_refutes_a_suspicion_or_a_death_is_passed_on_as_soon_and_as_often_as_all_else(suspected: bool) -> None:
    swim = knowing(1, 2, 3, 4, 5)
    gossip(swim, claim(1, 2), now=10.0)
    if not suspected:
        run(swim, 60.0)
        assert swim.state(node(1)) is MemberState.DEAD
    effects = swim.receive(kinds.State(False, (record(1, incarnation=2).as_update(),)), node(1), 60.0)
    effects += [effect for _, effect in run(swim, 70.0, deaf=False)]
    assert sum(_passed_on(swim, record(1, incarnation=2), effects).values()) == 12


def test_a_joining_node_learns_everybody_and_everybody_of_it() -> None:
    contact, joining = machine(0), machine(9)
    gossip(contact, record(1), record(2))
    (ask,) = joining.join([node(0)], 0.0)
    assert isinstance(ask, Send)
    effects = contact.receive(said(ask), node(9), 0.0)
    assert (node(9), MemberState.ALIVE, "") in changes(effects)
    assert any(isinstance(update, NodeRecord) and update.node == node(9) for update in told(effects, contact))
    seen: list[Effect] = []
    for answer in sends(effects, kinds.State):
        assert answer.node == node(9)
        seen += joining.receive(said(answer), node(0), 0.0)
    assert {name for name, state, _ in changes(seen) if state is MemberState.ALIVE} == {node(0), node(1), node(2)}
    assert [effect for effect in seen if isinstance(effect, Synchronized)] == [Synchronized(node=node(0))]
    assert len(sends(seen, kinds.Sync)) == 1, "then it tells what only it knew"


def test_what_a_joining_node_learns_it_does_not_pass_on() -> None:
    joining = machine(9)
    joining.join([node(0)], 0.0)
    state = kinds.State(True, tuple(record(number).as_update() for number in range(3)))
    effects = joining.receive(state, node(0), 0.0)
    assert told(effects) == []
    assert joining.settled


def test_a_contact_that_does_not_answer_is_asked_again_and_others_in_turn() -> None:
    joining = machine(9)
    effects = [*joining.join([node(1), node(2)], 0.0), *(effect for _, effect in run(joining, 4.0))]
    asked = [send.node for send in sends(effects, kinds.Join)]
    assert asked[:2] == [node(1), node(2)]
    assert set(asked[2:]) == {node(1), node(2)}
    assert len(asked) >= 5


def test_nobody_joins_in_another_nodes_name() -> None:
    swim = machine(0)
    effects = swim.receive(kinds.Join(record(2).as_update()), node(1), 0.0)
    assert [e.reason for e in effects if isinstance(e, Rejected)] == ["it joins in another node's name"]
    assert swim.state(node(2)) is None
    assert sends(effects, kinds.State) == []


def test_the_whole_state_is_not_sent_to_the_same_node_twice_in_a_moment() -> None:
    swim = machine(0)
    join = kinds.Join(record(1).as_update())
    assert len(sends(swim.receive(join, node(1), 0.0), kinds.State)) == 1
    assert sends(swim.receive(join, node(1), 0.1), kinds.State) == []
    assert len(sends(swim.receive(join, node(1), 0.7), kinds.State)) == 1


def test_records_that_are_wanted_again_and_again_are_sent_once_in_a_moment() -> None:
    swim = knowing(*range(1, 100))
    everybody = b"".join(bytes.fromhex(node(number)) for number in range(100))

    def given(question: bytes, now: float) -> int:
        answers = sends(swim.receive(kinds.Wanted(question), node(1), now), kinds.State)
        return sum(len(updates_untrusted(fields_of(answer.message)[1])) for answer in answers)

    assert given(everybody * 20, 0.0) == 100, "each is sent once, however often it is named"
    assert given(everybody, 0.1) == 64
    assert given(everybody, 0.2) == 0
    assert "records wanted again and again" in swim.statistics().rejected
    assert given(everybody, 0.7) == 100


def test_a_sender_without_a_record_is_asked_for_it() -> None:
    swim = machine(0)
    effects = swim.receive(kinds.Gossip(()), node(5), 0.0)
    (ask,) = sends(effects, kinds.Wanted)
    assert (ask.node, fields_of(ask.message)[0]) == (node(5), bytes.fromhex(node(5)))
    assert sends(swim.receive(kinds.Gossip(()), node(5), 0.1), kinds.Wanted) == []
    other = machine(5)
    (answer,) = sends(other.receive(said(ask), node(0), 0.0), kinds.State)
    assert changes(swim.receive(said(answer), node(5), 0.2)) == [(node(5), MemberState.ALIVE, "")]


def test_more_members_than_the_limit_are_refused() -> None:
    swim = knowing(1, 2, config=Config(member_limit=2))
    effects = gossip(swim, record(3))
    assert [e.reason for e in effects if isinstance(e, Rejected)] == ["more members than member_limit"]
    assert swim.state(node(3)) is None


def test_a_record_that_its_subject_did_not_sign_changes_nothing() -> None:
    swim = knowing(1)
    forged = structs.replace(record(1, incarnation=2, leaving=True), signature=record(1).signature)
    effects = gossip(swim, forged, sender=2)
    assert any(isinstance(e, Rejected) and e.sender == node(2) for e in effects)
    assert swim.state(node(1)) is MemberState.ALIVE
    assert swim.statistics().rejected == {"a record that its subject did not sign": 1}


def test_the_same_offence_is_reported_once_and_counted_each_time() -> None:
    swim = knowing(1)
    forged = structs.replace(record(2), signature=b"")
    reported = [e for _ in range(3) for e in gossip(swim, forged) if isinstance(e, Rejected)]
    assert len(reported) == 1
    assert swim.statistics().rejected["a record that its subject did not sign"] == 3


class TwoKeys:
    """Trust in nodes whose key is named by their proof: several keys may speak for one id."""

    def sign(self, statement: bytes) -> bytes:
        return HashTrust(node(0)).sign(statement)

    def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
        return HashTrust(NodeId(record.node + record.proof.decode())).sign(statement) == signature

    def holds(self, record: NodeRecord) -> bool:
        return record.proof != b"ended"

    def continues(self, held: NodeRecord, record: NodeRecord) -> bool:
        return held.proof == record.proof

    def issuer(self, record: NodeRecord) -> bytes:
        return record.name.encode()

    @staticmethod
    def record(proof: str, incarnation: int, *, leaving: bool = False) -> NodeRecord:
        bare = NodeRecord(
            node=node(1), name="databases", proof=proof.encode(), incarnation=incarnation, leaving=leaving
        )
        return structs.replace(bare, signature=HashTrust(NodeId(node(1) + proof)).sign(bare.statement()))


@pytest.mark.parametrize("state", [MemberState.ALIVE, MemberState.DEAD, MemberState.LEFT])
def test_a_node_id_belongs_to_the_key_that_first_spoke_for_it(state: MemberState) -> None:
    """Another credential of the realm cannot take over a member's id, not even when that is gone."""
    swim = machine(0, trust=TwoKeys())
    gossip(swim, TwoKeys.record("first", 1, leaving=state is MemberState.LEFT))
    if state is MemberState.DEAD:
        run(swim, 30.0)
    assert swim.state(node(1)) is state
    effects = gossip(swim, TwoKeys.record("second", 2))
    assert [e.reason for e in effects if isinstance(e, Rejected)] == ["a record that its subject did not sign"]
    held = swim.record(node(1))
    assert held is not None
    assert held.proof == b"first"
    assert swim.state(node(1)) is state
    gossip(swim, TwoKeys.record("first", 3))
    assert swim.state(node(1)) is MemberState.ALIVE


def test_whose_certificates_hold_no_more_is_forgotten_whatever_its_state() -> None:
    trust = HashTrust(node(0))
    swim = knowing(1, 2, 3, 4, trust=trust)
    for witness in (3, 4):
        gossip(swim, claim(2, witness))
    assert swim.state(node(2)) is MemberState.SUSPECT
    gossip(swim, record(3, incarnation=2, leaving=True), sender=3)
    trust.expelled |= {node(1), node(2), node(3)}
    effects = swim.recheck(1.0)
    assert [(e.node, e.state, e.evidence) for e in effects if isinstance(e, Changed)] == [
        (node(1), MemberState.DEAD, "expelled"),
        (node(2), MemberState.DEAD, "expelled"),
    ]
    assert [swim.state(node(number)) for number in (1, 2, 3, 4)] == [None, None, None, MemberState.ALIVE]
    assert swim.statistics().suspect == 0
    assert swim.statistics().refuted == 0, "nobody has contradicted the suspicion"
    later = [effect for _, effect in run(swim, 30.0, deaf=False)]
    assert not {send.node for send in sends(later)} & {node(1), node(2), node(3)}, "they are not probed either"
    assert {update.node for update in told(later)} <= {node(4)}, "and nobody is told of them"
    assert swim.recheck(40.0) == []


def test_who_is_linked_by_newer_certificates_has_time_to_show_them() -> None:
    """A cluster's key was rotated: the link knows it already, the record does not yet."""
    swim = machine(0, trust=TwoKeys())
    gossip(swim, TwoKeys.record("ended", 1))
    effects = swim.recheck(0.0, lambda _: True)
    assert [(send.node, fields_of(send.message)[0]) for send in sends(effects, kinds.Wanted)] == [
        (node(1), bytes.fromhex(node(1)))
    ]
    assert changes(effects) == []
    asked = [at for at, effect in run(swim, 2.9, deaf=False) if sends([effect], kinds.Wanted)]
    assert asked == [1.0, 2.0]
    assert swim.state(node(1)) is not None
    seen = run(swim, 3.1, deaf=False)
    assert swim.state(node(1)) is None, "it had its time"
    assert [effect.evidence for _, effect in seen if isinstance(effect, Changed)][-1] == "expelled"


def test_the_forgotten_are_not_taken_in_again() -> None:
    trust = HashTrust(node(0))
    swim = knowing(1, 2, trust=trust)
    trust.expelled.add(node(1))
    swim.recheck(0.0)
    effects = gossip(swim, record(1, incarnation=7), sender=2)
    assert [e.reason for e in effects if isinstance(e, Rejected)] == [
        "a record that rests on certificates that do not hold"
    ]
    assert swim.state(node(1)) is None


def test_a_renewal_stands_for_the_known_record_or_else_the_whole_one_is_asked_for() -> None:
    swim = knowing(1)
    good = Renewal(node=node(1), incarnation=2, signature=record(1, incarnation=2).signature)
    assert changes(gossip(swim, good)) == [(node(1), MemberState.ALIVE, "")]
    other = Renewal(node=node(1), incarnation=3, signature=record(1, incarnation=3, site="moved").signature)
    effects = gossip(swim, other, sender=2)
    assert changes(effects) == []
    assert node(2) in [send.node for send in sends(effects, kinds.Wanted)]
    unknown = Renewal(node=node(8), incarnation=3, signature=b"")
    assert bytes.fromhex(node(8)) in [fields_of(send.message)[0] for send in sends(gossip(swim, unknown), kinds.Wanted)]


facts = st.lists(
    st.builds(
        record,
        st.integers(1, 3),
        incarnation=st.integers(1, 3),
        leaving=st.booleans(),
        site=st.sampled_from(["", "eu", "us"]),
    ),
    max_size=5,
)


@given(facts)
@settings(max_examples=60)
def test_records_in_any_order_and_repetition_end_in_the_same_view(some: list[NodeRecord]) -> None:
    ends: set[tuple[object, ...]] = set()
    for order in itertools.islice(itertools.permutations(some), 24):
        swim = machine(0)
        for one in (*order, *order[:2]):
            gossip(swim, one, sender=9)
        view = swim._context.view
        ends.add((view.hashes(), *((n, swim.state(node(n)), swim.record(node(n))) for n in (1, 2, 3))))
    assert len(ends) == 1


def test_another_process_with_this_nodes_key_is_reported_and_not_fought() -> None:
    swim = knowing(1)
    effects = gossip(swim, record(0, incarnation=5, site="elsewhere"))
    assert [e.reason for e in effects if isinstance(e, Rejected)] == ["another process uses this node's id and key"]
    assert swim.own.incarnation == 1


# -- comparing ----------------------------------------------------------------------------------------------


def test_a_digest_is_answered_once_and_only_if_it_was_asked_for() -> None:
    swim = knowing(1, 2, 3)
    denial = kinds.Digest(bytes(range(256)), b"")
    effects = swim.receive(denial, node(1), 0.0)
    assert swim.statistics().rejected == {"a digest that was not asked for": 1}
    assert sends(effects, kinds.State) == []
    swim._census.synchronize(node(1))
    assert len(sends(swim.receive(denial, node(1), 0.1), kinds.State)) == 1
    assert sends(swim.receive(denial, node(1), 0.2), kinds.State) == []


def test_a_comparison_is_answered_once_in_a_moment() -> None:
    swim = knowing(1, 2, 3)
    question = kinds.Sync(bytes(8 * 256))
    assert len(sends(swim.receive(question, node(1), 0.0), kinds.Digest)) == 1
    assert sends(swim.receive(question, node(1), 0.1), kinds.Digest) == []
    assert len(sends(swim.receive(question, node(1), 0.7), kinds.Digest)) == 1


def test_views_are_compared_now_and_then() -> None:
    swim = knowing(1, 2, 3)
    asked = [t for t, e in run(swim, 120.0, deaf=False) if sends([e], kinds.Sync)]
    assert 6 <= len(asked) <= 12


def test_views_are_compared_soon_after_members_were_met() -> None:
    swim = knowing(1, 2, 3)
    run(swim, 10.0, deaf=False)
    came = kinds.State(False, (record(4).as_update(), record(5).as_update()))
    swim.receive(came, node(1), 10.0)
    asked = [round(t, 2) for t, e in run(swim, 12.5, deaf=False) if sends([e], kinds.Sync)]
    swim.receive(came, node(1), 12.5)
    later = [round(t, 2) for t, e in run(swim, 15.0, deaf=False) if sends([e], kinds.Sync)]
    assert (12.0 in asked, 14.5 in later) == (True, False)


def test_a_record_that_says_nothing_new_is_not_read() -> None:
    swim = knowing(1, 2)
    known = replace(record(2).as_update(), name="no name")
    assert swim.receive(kinds.Gossip((known,)), node(1), 0.0) == []


def test_what_is_wrong_with_a_newer_or_contradicting_or_strange_record_is_found() -> None:
    known = replace(record(2).as_update(), name="no name")
    for change in ({"incarnation": known.incarnation + 1}, {"signature": b"another"}, {"node": bytes(16)}):
        effects = knowing(1, 2).receive(kinds.Gossip((replace(known, **change),)), node(1), 0.0)
        assert [type(effect) for effect in effects] == [Rejected]


def test_a_record_of_a_dead_member_is_heard_though_it_is_not_new() -> None:
    swim = dead_member()
    effects = swim.receive(kinds.State(True, (record(5).as_update(),)), node(1), 2.0)
    gossip = [cast("tuple[object, ...]", fields_of(send.message)[-1]) for send in sends(effects, kinds.Gossip)]
    accusations = [update for updates in gossip for update in updates]
    assert accusations == [kinds.AccusationUpdate(bytes.fromhex(node(5)), 1)], (
        "who holds it alive is told that it is held dead here"
    )
