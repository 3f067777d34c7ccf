"""One member that holds a valid credential and uses it to have another one thrown out."""

from __future__ import annotations

import dataclasses
from typing import Final, final

from msgspec import structs

from benchmarks.membership.realm import Realm
from iris.cluster.swim.gossip import Accusation, Claim, Evidence, Renewal, Update
from iris.cluster.swim.view import BUCKETS
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.kernel.wire.kinds import MAX_NUMBER

_EVERY: Final = 0.05


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Malice:
    """Damage that the malicious member did."""

    deaths: int
    """Number of times that a node concluded that another one was dead."""
    closed_routes: int
    """Number of times that a node gave the target, or another one, no more work."""
    refutations: int
    """Number of times that the target had to refute."""
    rejected: int
    """Statements that were recognized as forged."""


def malice(size: int, seed: int, *, seconds: float = 120.0) -> Malice:
    """Have a malicious member send every node, twenty times a second, everything it can against one target."""
    realm = Realm(size, seed, encoded=True)
    realm.run(3.0)
    villain, target = realm.random.sample(realm.nodes, 2)

    def answer(receiver: NodeId, message: kinds.OfMembership, sender: NodeId) -> bool:
        """Answer for the villain: as a helper it finds nodes silent; asked to compare views it denies the target."""
        if receiver == villain and isinstance(message, kinds.ProbeRequest):
            realm.post(villain, sender, kinds.ProbeReport(message.sequence, 2, ()))
            return True
        return False

    def attack() -> None:
        realm.after(_EVERY, attack)
        record = realm.machines[target].own
        bystander = realm.random.choice(realm.nodes)
        trust = realm.trust(villain)
        silent, refused, forged = (
            Claim(node=target, incarnation=record.incarnation, witness=witness, evidence=evidence)
            for witness, evidence in (
                (villain, Evidence.SILENT),
                (villain, Evidence.REFUSED),
                (bystander, Evidence.REFUSED),
            )
        )
        leaving = structs.replace(record, incarnation=record.incarnation + 1, leaving=True)
        updates: list[Update] = [
            *(structs.replace(claim, signature=trust.sign(claim.statement())) for claim in (silent, refused)),
            Accusation(node=target, incarnation=record.incarnation),
            Renewal(node=target, incarnation=MAX_NUMBER, signature=trust.sign(b"")),
        ]
        forgeries: list[Update] = [
            structs.replace(forged, signature=trust.sign(forged.statement())),
            structs.replace(leaving, signature=trust.sign(leaving.statement())),
        ]
        for node in realm.nodes:
            if node == villain:
                continue
            realm.post(villain, node, kinds.Gossip(tuple(update.as_update() for update in updates)))
            realm.post(villain, node, kinds.Gossip(tuple(update.as_update() for update in forgeries)))
        realm.post(villain, target, kinds.Probe(1, 2, record.incarnation, ()))
        realm.post(villain, bystander, kinds.Digest(bytes(range(BUCKETS)), b""))

    realm.interceptor = answer
    attack()
    realm.run(seconds)
    statistics = [machine.statistics() for node, machine in realm.machines.items() if node != villain]
    return Malice(
        deaths=sum(noted.observer != villain for noted in realm.deaths()),
        closed_routes=sum(noted.closes and noted.observer != villain for noted in realm.noted),
        refutations=realm.machines[target].statistics().refutations,
        rejected=sum(sum(entry.rejected.values()) for entry in statistics),
    )
