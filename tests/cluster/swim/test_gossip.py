"""Updates: their form on the wire; anything else is refused with one error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.swim.gossip import Accusation, Claim, Evidence, Renewal, Update, updates_untrusted
from iris.kernel import wire
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from tests.support.membership import node, record
from tests.support.messages import arrived

UPDATES: list[Update] = [
    record(1),
    Renewal(node=node(2), incarnation=5, signature=b"s" * 64),
    Claim(node=node(3), incarnation=1, witness=node(4), evidence=Evidence.REFUSED, signature=b"s" * 64),
    Accusation(node=node(5), incarnation=2**62),
]

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 4), st.binary(max_size=17), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=11).map(tuple),
    max_leaves=30,
)


def test_updates_come_out_of_the_wire_as_they_went_in() -> None:
    message = arrived(kinds.Gossip, tuple(update.as_update() for update in UPDATES))
    assert updates_untrusted(message.updates) == UPDATES


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: type(update).__name__)
def test_the_size_of_an_update_is_not_below_its_bytes_on_the_wire(update: Update) -> None:
    assert update.size >= len(wire.encode_batch([update.as_update()])) - 1


@given(values)
def test_whatever_a_peer_sends_is_read_or_refused_with_one_error(value: object) -> None:
    try:
        message = arrived(kinds.Gossip, value)
        updates = updates_untrusted(message.updates)
    except RemoteProtocolError:
        return
    assert tuple(update.as_update() for update in updates) == message.updates


@pytest.mark.parametrize(
    "value",
    [
        None,
        (None,),
        ((),),
        ((4, bytes(16), 1),),
        ((2, bytes(16), 1, bytes(16), 0, b""),),
        ((2, bytes(16), 1, bytes(16), 3, b""),),
        ((3, bytes(15), 1),),
        ((1, bytes(16), 1, bytes(129)),),
        (UPDATES[3].as_update(),) * (512 + 1),
    ],
)
def test_malformed_updates_are_refused(value: object) -> None:
    with pytest.raises(RemoteProtocolError):
        updates_untrusted(arrived(kinds.Gossip, value).updates)


def test_a_claim_is_bound_to_its_witness_incarnation_and_evidence() -> None:
    statements = {
        Claim(node=node(a), incarnation=i, witness=node(w), evidence=e).statement()
        for a in (1, 2)
        for i in (1, 2)
        for w in (1, 2)
        for e in Evidence
    }
    assert len(statements) == 16


def test_a_renewal_changes_the_incarnation_and_nothing_else() -> None:
    old, new = record(1), record(1, incarnation=2)
    assert Renewal(node=old.node, incarnation=2, signature=new.signature).applied_to(old) == new
