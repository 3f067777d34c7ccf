"""Gossip: the updates that members send about members, and the transmit-limited queue that spreads them.

The four updates and their form on the wire:

- A record and a renewal are statements of their subject, a claim is a statement of its witness; all are signed.
- An accusation is an unsigned hint.  Its only effect is that its subject, if it lives, raises its incarnation.
- A list of updates has at most 512 elements; each element names its own form with its first field.

The queue sends each update a number of times, the least sent first:

- One update per key; a newer one takes the place of the older and starts again.
- What its subject sends everybody itself needs few messages of others: after a round or none it only rides along with
  messages that are sent anyway.  While a hundred nodes start, the news of each other's coming was most of their work.
- Taking is proportional to what is taken, not to what waits: updates stand in levels by how often they were sent.
- The number of waiting updates is bounded; what has been sent most gives way, and is counted.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, final

from msgspec import Struct, structs

from iris.cluster.swim.records import NodeRecord, record_untrusted, statement_bytes
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.wire import Message, kinds, node_of

MAX_SIGNATURES: Final = 240
"""Signatures in one message: receivers check ``wire.MAX_CHECKS`` for one frame."""

_RECORD_SIGNATURES: Final = 3
"""Signatures of one record: its subject's, and two of the certificate chain with which the subject shows its key."""


@final
class Evidence(enum.IntEnum):
    """The evidence of a witness.  The greater value is the stronger one."""

    SILENT = 1
    """Probes were not answered: dead, cut off, or stalled."""

    REFUSED = 2
    """The link was closed or a connection refused: the host lives, the process does not."""


@final
class Renewal(Struct, frozen=True, kw_only=True):
    """A known record with a higher incarnation and otherwise unchanged.

    An eighth of the size of a record: a healed partition makes every member refute its death at the same time.
    """

    node: NodeId
    incarnation: int
    signature: bytes

    @property
    def size(self) -> int:
        """Size on the wire in bytes, rounded up."""
        return 32 + len(self.signature)

    def as_update(self) -> kinds.RenewalUpdate:
        """Return the form on the wire."""
        return kinds.RenewalUpdate(bytes.fromhex(self.node), self.incarnation, self.signature)

    def applied_to(self, record: NodeRecord) -> NodeRecord:
        """Return the record that this renewal stands for, if ``record`` is the one that was renewed."""
        return structs.replace(record, incarnation=self.incarnation, signature=self.signature)


@final
class Claim(Struct, frozen=True, kw_only=True):
    """A witness's statement that it finds ``node``, of this incarnation, silent or refused."""

    node: NodeId
    incarnation: int
    witness: NodeId
    evidence: Evidence
    signature: bytes = b""

    @property
    def size(self) -> int:
        """Size on the wire in bytes, rounded up."""
        return 56 + len(self.signature)

    def as_update(self) -> kinds.ClaimUpdate:
        """Return the form on the wire."""
        return kinds.ClaimUpdate(
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
class Accusation(Struct, frozen=True, kw_only=True):
    """A hint to ``node`` that somebody holds it dead at this incarnation."""

    node: NodeId
    incarnation: int
    size: ClassVar = 32
    """Size on the wire in bytes, rounded up."""

    def as_update(self) -> kinds.AccusationUpdate:
        """Return the form on the wire."""
        return kinds.AccusationUpdate(bytes.fromhex(self.node), self.incarnation)


Update = NodeRecord | Renewal | Claim | Accusation


def signatures_of(update: Update) -> int:
    """Return how many signatures the receiver of an update checks, at most."""
    return _RECORD_SIGNATURES if isinstance(update, NodeRecord) else 1


def signatures_in(message: Message) -> int:
    """Return how many signatures the receiver of a message of membership checks, at most, whatever it is."""
    if isinstance(message, kinds.Join):
        return _RECORD_SIGNATURES
    updates: tuple[kinds.AnyUpdate, ...] = getattr(message, "updates", ())
    signatures = len(updates)
    for update in updates:
        if isinstance(update, kinds.RecordUpdate):
            signatures += _RECORD_SIGNATURES - 1
    return signatures


def _never(_node: bytes, _incarnation: int, _signature: bytes) -> bool:
    return False


def updates_untrusted(
    updates: Iterable[kinds.AnyUpdate], is_old: Callable[[bytes, int, bytes], bool] = _never
) -> list[Update]:
    """Read the updates that a message carries, without the records that are old.

    Args:
        updates: the updates as received.
        is_old: tells of a record by its node, incarnation and signature that it says nothing new.  While many join,
            most of what arrives is known already.

    Raises:
        RemoteProtocolError: a record against the rules; nothing of the message is used then.
    """
    found: list[Update] = []
    for update in updates:
        match update:
            case kinds.RecordUpdate():
                if not is_old(update.node, update.incarnation, update.signature):
                    found.append(record_untrusted(update))
            case kinds.RenewalUpdate(node, incarnation, signature):
                found.append(Renewal(node=node_of(node), incarnation=incarnation, signature=signature))
            case kinds.ClaimUpdate(node, incarnation, witness, evidence, signature):
                found.append(
                    Claim(
                        node=node_of(node),
                        incarnation=incarnation,
                        witness=node_of(witness),
                        evidence=Evidence(evidence),
                        signature=signature,
                    )
                )
            case kinds.AccusationUpdate(node, incarnation):
                found.append(Accusation(node=node_of(node), incarnation=incarnation))
    return found


Key = tuple[str, ...]

MAX_WAITING: Final = 32_768
"""Updates waiting at one time; at 700 bytes each 22 MiB.  More only if over 10,000 members change in one second."""

_RIDES: Final = 4
"""The last so many sends of an update that its subject tells everybody itself: they start no message.  Probes and their
answers, four a second, carry them."""

_PRESSING: Final = 3
"""Sends that do start one, where the subject is new: one round, for those that start at the same time."""

_PASSED_OVER: Final = 16
"""Updates too large for what is left of a message that are looked at before the message is closed."""


def sends(members: int, config: Config) -> int:
    """Return how often each update is sent by each member: ``update_sends``, or 4 log10(n) in very large realms.

    A member is missed by all of n members sending s times each with probability e**-s: 6e-6 for 12.
    """
    return max(config.update_sends, 4 * math.ceil(math.log10(members + 1)))


@final
class GossipQueue:
    """The transmit-limited queue of updates."""

    __slots__ = ("_level_of", "_levels", "_riding", "_sent_directly", "dropped")

    def __init__(self) -> None:
        # Ordered by linked lists: a plain dict that is emptied from its front is searched through its holes.
        self._levels: list[OrderedDict[Key, tuple[Update, int]]] = [OrderedDict()]
        self._level_of: dict[Key, int] = {}
        self._sent_directly: dict[Key, int] = {}
        """Updates that their subjects send to everybody, and the level from which on each only rides along."""
        self._riding = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._level_of)

    def __repr__(self) -> str:
        return f"<GossipQueue of {len(self)}>"

    @property
    def pressing(self) -> bool:
        """True if an update waits that needs messages of its own."""
        return len(self._level_of) > self._riding

    def get(self, key: Key) -> Update | None:
        """Return the waiting update under ``key``."""
        level = self._level_of.get(key)
        return None if level is None else self._levels[level][key][0]

    def add(self, key: Key, update: Update) -> None:
        """Queue ``update``, in place of what waits under ``key``."""
        self.discard(key)
        if len(self._level_of) >= MAX_WAITING:
            for level in reversed(self._levels):
                if level:
                    self.discard(next(iter(level)))
                    self.dropped += 1
                    break
        self._levels[0][key] = (update, update.size)
        self._level_of[key] = 0

    def discard(self, key: Key) -> None:
        """Send what waits under ``key`` no more."""
        level = self._level_of.pop(key, None)
        if level is not None:
            del self._levels[level][key]
            self._riding -= level >= self._sent_directly.pop(key, level + 1)

    def sent_directly(self, key: Key, limit: int, *, new: bool = False) -> None:
        """Cut what waits under ``key`` to few of its ``limit`` sends, since its subject sends it to everybody itself.

        Args:
            key: the key of the update.
            limit: see ``pop``.
            new: others may have come with the subject, whom it does not know of: one round of messages is for them.
        """
        level = self._level_of.get(key)
        if level is None or key in self._sent_directly:
            return
        riding = max(0, limit - _RIDES)
        target = max(level, riding - _PRESSING if new else riding)
        self._put(key, self._levels[level].pop(key), target)
        self._sent_directly[key] = riding
        self._riding += target >= riding

    def _put(self, key: Key, entry: tuple[Update, int], level: int) -> None:
        while level >= len(self._levels):
            self._levels.append(OrderedDict())
        self._levels[level][key] = entry
        self._level_of[key] = level

    def pop(self, max_bytes: int, max_updates: int, limit: int) -> list[Update]:
        """Return the updates for one message; an update taken ``limit`` times is forgotten.

        An update that does not fit is passed over for smaller ones and waits for a message with more room; one
        that is larger than ``max_bytes`` goes alone.
        """
        taken: list[Update] = []
        moves: list[tuple[int, Key]] = []
        room = max_bytes
        passed_over = 0
        for depth, level in enumerate(self._levels):
            for key, (update, size) in level.items():
                if size > room and taken:
                    passed_over += 1
                    if passed_over > _PASSED_OVER:
                        break
                    continue
                taken.append(update)
                moves.append((depth, key))
                room -= size
                if len(taken) >= max_updates or room < 32:
                    break
            if len(taken) >= max_updates or room < 32 or passed_over > _PASSED_OVER:
                break
        for depth, key in moves:
            if depth + 1 >= limit:
                self.discard(key)
                continue
            self._put(key, self._levels[depth].pop(key), depth + 1)
            self._riding += self._sent_directly.get(key) == depth + 1
        return taken
