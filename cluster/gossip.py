"""The four things that members tell each other about members, and their form on the wire.

Rules of this file:

- A record and a renewal are statements of their subject, a claim is a statement of its witness; all are signed.
- An accusation is an unsigned hint.  Its only effect is that its subject, if it lives, raises its incarnation.
- A list of updates has at most ``MAX_UPDATES`` elements; each element names its own form with its first field.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Final, assert_never, cast, final

from iris.cluster.records import (
    MAX_SIGNATURE,
    NodeRecord,
    bytes_untrusted,
    counter_untrusted,
    node_untrusted,
    record_from_tuple_untrusted,
    statement_bytes,
    tuple_untrusted,
)
from iris.kernel import kinds
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.kernel.values import dataclass
from iris.kernel.wire import Message

MAX_UPDATES: Final = 512
"""Updates in one message: half of what the decoder accepts as one array."""

_RECORD: Final = 0
_RENEWAL: Final = 1
_CLAIM: Final = 2
_ACCUSATION: Final = 3

MAX_SIGNATURES: Final = 240
"""Signatures in one message: receivers check ``wire.MAX_CHECKS`` for one frame."""

_RECORD_FIELDS: Final = 11
_RECORD_SIGNATURES: Final = 3
"""Its subject's, and the two in the papers with which that shows its key."""

_WITH_UPDATES: Final = frozenset(
    {kinds.PROBE, kinds.PROBE_ANSWER, kinds.PROBE_REQUEST, kinds.PROBE_REPORT, kinds.GOSSIP, kinds.STATE}
)


@final
class Evidence(enum.IntEnum):
    """What a witness saw.  The greater value is the stronger one."""

    SILENT = 1
    """Probes were not answered: dead, cut off, or stalled."""

    REFUSED = 2
    """The link was closed or a connection refused: the host lives, the process does not."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """A known record with a higher incarnation and otherwise unchanged.

    An eighth of the size of a record: a healed partition makes every member refute its death at the same time.
    """

    node: NodeId
    incarnation: int
    signature: bytes

    def as_tuple(self) -> tuple[object, ...]:
        """Return the form on the wire."""
        return (_RENEWAL, bytes.fromhex(self.node), self.incarnation, self.signature)

    def applied_to(self, record: NodeRecord) -> NodeRecord:
        """Return the record that this renewal stands for, if ``record`` is the one that was renewed."""
        return dataclasses.replace(record, incarnation=self.incarnation, signature=self.signature)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A witness's statement that it finds ``node``, of this incarnation, silent or refused."""

    node: NodeId
    incarnation: int
    witness: NodeId
    evidence: Evidence
    signature: bytes = b""

    def as_tuple(self) -> tuple[object, ...]:
        """Return the form on the wire."""
        return (
            _CLAIM,
            bytes.fromhex(self.node),
            self.incarnation,
            bytes.fromhex(self.witness),
            int(self.evidence),
            self.signature,
        )

    def statement(self) -> bytes:
        """Return the bytes that the witness signs."""
        return statement_bytes(
            b"iris claim 1",
            [
                bytes.fromhex(self.node),
                b"%d" % self.incarnation,
                bytes.fromhex(self.witness),
                b"%d" % self.evidence,
            ],
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """A hint to ``node`` that somebody holds it dead at this incarnation."""

    node: NodeId
    incarnation: int

    def as_tuple(self) -> tuple[object, ...]:
        """Return the form on the wire."""
        return (_ACCUSATION, bytes.fromhex(self.node), self.incarnation)


Update = NodeRecord | Renewal | Claim | Accusation


def encode_update(update: Update) -> tuple[object, ...]:
    """Return the form on the wire."""
    match update:
        case NodeRecord():
            return (_RECORD, *update.as_tuple())
        case Renewal() | Claim() | Accusation():
            return update.as_tuple()
        case _:
            assert_never(update)


def signatures_of(update: Update) -> int:
    """Return how many signatures the receiver of an update checks, at most."""
    return _RECORD_SIGNATURES if isinstance(update, NodeRecord) else 1


def update_size(update: Update) -> int:
    """Return the bytes on the wire, rounded up."""
    match update:
        case NodeRecord():
            return update.size
        case Renewal():
            return 32 + len(update.signature)
        case Claim():
            return 56 + len(update.signature)
        case Accusation():
            return 32
        case _:
            assert_never(update)


def signatures_in(message: Message) -> int:
    """Return how many signatures the receiver of a message of membership checks, at most, whatever it is."""
    if message[0] == kinds.JOIN:
        return _RECORD_SIGNATURES
    updates = message[-1]
    if message[0] not in _WITH_UPDATES or type(updates) is not tuple:
        return 0
    found = 0
    for update in cast("tuple[object, ...]", updates):
        found += (
            _RECORD_SIGNATURES
            if type(update) is tuple and len(cast("tuple[object, ...]", update)) == _RECORD_FIELDS
            else 1
        )
    return found


def _never(node: object, incarnation: object, signature: object) -> bool:  # noqa: ARG001 -- the same whatever they are
    return False


def updates_untrusted(value: object, is_old: Callable[[object, object, object], bool] = _never) -> list[Update]:
    """Read the updates that a message carries, without the records that are old.

    Args:
        value: what came.
        is_old: tells of a record by its node, incarnation and signature, as they came, that it says nothing new.  While
            many join, most of what arrives is known already: it is passed over in 0.9 us, and read in 10 us.

    Raises:
        RemoteProtocolError: wrong form or a limit exceeded; nothing of the message is used then.
    """
    updates: list[Update] = []
    for update in tuple_untrusted(value, MAX_UPDATES, "a list of updates"):
        fields = tuple_untrusted(update, _RECORD_FIELDS, "an update")
        if len(fields) != _RECORD_FIELDS or not is_old(fields[1], fields[2], fields[-1]):
            updates.append(_update_untrusted(fields))
    return updates


def _update_untrusted(fields: tuple[object, ...]) -> Update:
    if len(fields) == _RECORD_FIELDS and fields[0] == _RECORD:
        return record_from_tuple_untrusted(fields[1:])
    match fields:
        case (1, node, incarnation, signature):
            return Renewal(
                node=node_untrusted(node),
                incarnation=counter_untrusted(incarnation),
                signature=bytes_untrusted(signature, MAX_SIGNATURE, "a signature"),
            )
        case (2, node, incarnation, witness, evidence, signature):
            if evidence not in (1, 2):
                raise RemoteProtocolError("evidence is silent or refused")
            return Claim(
                node=node_untrusted(node),
                incarnation=counter_untrusted(incarnation),
                witness=node_untrusted(witness),
                evidence=Evidence(evidence),
                signature=bytes_untrusted(signature, MAX_SIGNATURE, "a signature"),
            )
        case (3, node, incarnation):
            return Accusation(node=node_untrusted(node), incarnation=counter_untrusted(incarnation))
        case _:
            raise RemoteProtocolError("unknown form of update")
