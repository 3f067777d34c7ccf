"""Records of outcomes in the log's index: each key has one.

========= ==================================================== ====================================================
state     what it is                                           a claim of another member
========= ==================================================== ====================================================
CLAIMED   a member may be running the request                  waits; when that member is gone or its time is over,
                                                               as IN_DOUBT
IN_DOUBT  a member began it, and its progress is not known     is refused; or with ``rerun`` takes over, as the next
                                                               attempt
DONE      the outcome is known                                 gets the outcome
CLOSED    it is undone, or about to be, and was never begun    is refused
          (attempt 0), or begun and without an outcome
========= ==================================================== ====================================================

A claim is named by 16 random bytes, its *holder*.  Only the last holder of a key may record the outcome: a member that
was presumed dead, and is not, changes nothing any more once another one has taken over.

The claim of a request that undoes another one closes the key of that one, in its transaction.  It waits while a member
may still be running the other one; so of what is undone nothing begins any more, as far as the bridge knows.

The holder of a claim may leave notes, which the next holder gets.  What was not noted by a holder that was taken over
is refused: so the next one knows of all that a former one has begun.

With an outcome come the events of its outbox: they are stored in its transaction.  Claims that change nothing cost no
write.  Records end at their date; the table ``key_ends`` finds those that are due.  Nothing of a key is kept in memory.

What is kept is counted in bytes, for the cluster whose node has claimed the key: that is in its certificate, while the
cluster that is served is one of many that a node may be permitted to join.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, final

import msgspec

from iris.patterns.bridge_protocol import MAX_OUTCOME
from iris.patterns.pubsub.subscribe import EventRun
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log import KEY_ENDS, KEYS, Quota, Transaction, record_size

_FIELDS: Final = 96
"""Size of a record beside its outcome, in bytes."""

_SWEPT: Final = 4096
"""Records that end in one transaction: 20 ms."""

_DATE: Final = struct.Struct(">Q")

CLAIMED: Final = 0
IN_DOUBT: Final = 1
DONE: Final = 2
CLOSED: Final = 3


@final
class KeyRecord(msgspec.Struct, frozen=True, array_like=True):
    """Record of one key."""

    state: int
    cluster: str
    """Cluster that serves the request."""
    fingerprint: bytes
    """Fingerprint of what the request asks for."""
    holder: bytes
    """Id of the last claim."""
    node: str
    """Node that made the last claim."""
    attempt: int
    budget: float
    """Seconds after the claim at which its member has stopped."""
    ends: int
    """Time at which the key is forgotten, in microseconds since 1970."""
    outcome: bytes = b""
    """Outcome of the request; the notes of the holders until the key is ``DONE``."""
    owner: str = ""
    """Cluster in whose quota the key is counted."""
    opening: bytes = b""
    """Opening of the records in which the key was claimed."""
    over: float = 0.0
    """Time at which the claim is over at the latest, in seconds on the clock of that opening."""


_DECODER: Final = msgspec.msgpack.Decoder(KeyRecord)


class KeyClaim(NamedTuple):
    """Claim of a member that wants to run the request of a key."""

    key: bytes
    cluster: str
    owner: str
    """Cluster that the member speaks for."""
    fingerprint: bytes
    holder: bytes
    node: str
    budget: float
    keep: float
    """Seconds for which the key is remembered."""
    rerun: bool
    gone: bytes = b""
    """A holder that is known to have ended."""
    undoes: bytes = b""
    """Key of what the request undoes."""


class KeyNotes(NamedTuple):
    """Notes of a key's holder, in place of the former ones."""

    key: bytes
    holder: bytes
    notes: bytes


class KeyOutcome(NamedTuple):
    """Outcome of a key's request, as its member reports it."""

    claim: KeyClaim
    attempt: int
    outcome: bytes
    events: Sequence[EventRun] = ()
    """Events that are stored with the outcome."""


class KeyRelease(NamedTuple):
    """Release of a key by a member that has stopped without an outcome."""

    key: bytes
    holder: bytes
    begun: bool
    """True if the handler was called."""


Operation = KeyClaim | KeyNotes | KeyOutcome | KeyRelease


class Granted(NamedTuple):
    """Answer to a claim: the member is to run the request."""

    attempt: int
    notes: bytes = b""
    """Notes of earlier holders."""
    undone: bytes | None = b""
    """Outcome of what it undoes, b"" if that may have run to whatever point; None: it was never begun, nor will be."""


class Held(NamedTuple):
    """Answer to a claim: another member may be running the request."""

    holder: bytes
    node: str
    left: float
    """Longest time until the other claim is over, in seconds."""


class Known(NamedTuple):
    """Answer to a claim: the outcome is known."""

    outcome: bytes


class Doubtful(NamedTuple):
    """Answer to a claim: the request was begun, and its progress is not known."""

    node: str
    attempt: int


class ClaimRefused(NamedTuple):
    """Refusal of a claim, with the reason."""

    code: str
    text: str


class Accepted(NamedTuple):
    """The outcome is recorded, now or before."""

    new: bool


TOO_MANY: Final = "too_many_keys"
_CLOSED: Final = ClaimRefused("key_closed", "what the key stands for was undone, and does not begin any more")

Verdict = Granted | Held | Known | Doubtful | ClaimRefused | Accepted | bool
"""Answer to a claim; True if an outcome, notes or a release counted; ``ClaimRefused`` if they are refused."""


@final
class OutcomeRecords:
    """Rules for the keys of one log.

    Args:
        now: seconds on a monotonic clock.  Claims that the log has count as made now.
        opening: random bytes that identify claims made from now on.
    """

    def __init__(self, now: float, opening: bytes) -> None:
        self._opened = now
        self._opening = opening

    def apply(
        self, index: Transaction, runs: list[EventRun], operation: Operation, *, date: int, now: float, may_forget: bool
    ) -> Verdict:
        """Do what was asked, in a transaction of the log.

        Args:
            index: index of the log.
            runs: list to which the events of an outcome are added if it counts.
            operation: operation to apply.
            date: microseconds since 1970.
            now: seconds on the clock of ``__init__``.
            may_forget: True if a record whose date is over counts as none.

        Raises:
            LogDamaged: a record is not what was written.
        """
        view = _View(index)
        match operation:
            case KeyClaim():
                return self._claim(view, operation, date, now, may_forget=may_forget)
            case KeyNotes():
                return _note(view, operation)
            case KeyOutcome():
                verdict = _record(view, operation, date)
                if verdict == Accepted(new=True):
                    runs += operation.events
                return verdict
            case KeyRelease():
                return _release(view, operation)

    def _claim(self, view: _View, claim: KeyClaim, date: int, now: float, *, may_forget: bool) -> Verdict:
        known = self._known(view, claim.key, date, may_forget=may_forget)
        if known is None:
            refused = view.refusal(claim.owner, MAX_OUTCOME)
            if refused is not None:
                return refused
        elif known.state == CLOSED:
            return _CLOSED
        elif known.fingerprint != claim.fingerprint:
            return ClaimRefused("key_reused", "")
        elif known.state == DONE:
            return Known(known.outcome)
        undone = self._close(view, claim, date, now, may_forget=may_forget) if claim.undoes else b""
        if isinstance(undone, Held | ClaimRefused):
            return undone
        if known is None:
            return self._grant(view, claim, None, 1, date, now, undone)
        if known.state == CLAIMED and known.holder == claim.holder:
            return Granted(known.attempt, known.outcome, undone)  # the first answer was lost
        held = self._held(known, claim, now)
        if held is not None:
            return held
        if not claim.rerun:
            return Doubtful(known.node, known.attempt)
        return self._grant(view, claim, known, known.attempt + 1, date, now, undone)

    @staticmethod
    def _known(view: _View, key: bytes, date: int, *, may_forget: bool) -> KeyRecord | None:
        known = view.get(key)
        if known is not None and known.ends <= date and may_forget:
            view.delete(key, known)
            known = None
        return known

    def _held(self, known: KeyRecord, claim: KeyClaim, now: float) -> Held | None:
        """Return the member that may be running the request, unless it is known to have ended."""
        over = known.over if known.opening == self._opening else self._opened + known.budget
        if known.state == CLAIMED and now < over and known.holder != claim.gone:
            return Held(known.holder, known.node, over - now)
        return None

    def _close(
        self, view: _View, claim: KeyClaim, date: int, now: float, *, may_forget: bool
    ) -> Held | ClaimRefused | bytes | None:
        """Close the key of what a request undoes, unless it may be running; return what ``Granted.undone`` says."""
        known = self._known(view, claim.undoes, date, may_forget=may_forget)
        if known is None:
            refused = view.refusal(claim.owner, 0)
            if refused is not None:
                return refused
        elif known.state == DONE:
            return known.outcome
        elif known.state == CLOSED:
            return b"" if known.attempt else None
        elif (held := self._held(known, claim, now)) is not None:
            return held
        closed = self._claimed(claim, 0 if known is None else known.attempt, date, now)
        view.put(claim.undoes, msgspec.structs.replace(closed, state=CLOSED), known)
        return None if known is None else b""

    def _grant(
        self,
        view: _View,
        claim: KeyClaim,
        known: KeyRecord | None,
        attempt: int,
        date: int,
        now: float,
        undone: bytes | None,
    ) -> Granted:
        notes = b"" if known is None else known.outcome
        view.put(claim.key, self._claimed(claim, attempt, date, now, notes), known)
        return Granted(attempt, notes, undone)

    def _claimed(self, claim: KeyClaim, attempt: int, date: int, now: float, notes: bytes = b"") -> KeyRecord:
        return KeyRecord(
            CLAIMED,
            claim.cluster,
            claim.fingerprint,
            claim.holder,
            claim.node,
            attempt,
            claim.budget,
            date + int(max(claim.keep, claim.budget) * 1_000_000),
            outcome=notes,
            owner=claim.owner,
            opening=self._opening,
            over=now + claim.budget,
        )

    @staticmethod
    def sweep(index: Transaction, date: int) -> int:
        """Forget records whose date is over, 4,096 at most; return how many."""
        return len(_View(index).ended(date))


def count_keys(index: Transaction) -> int:
    """Return how many keys are remembered."""
    return index.count(KEYS)


def _note(view: _View, notes: KeyNotes) -> ClaimRefused | bool:
    known = view.get(notes.key)
    if known is None or known.state != CLAIMED or known.holder != notes.holder:
        return False
    refused = view.refusal(known.owner, len(notes.notes))
    if refused is None:
        view.put(notes.key, msgspec.structs.replace(known, outcome=notes.notes), known)
    return refused or True


def _record(view: _View, record: KeyOutcome, date: int) -> Accepted | ClaimRefused | bool:
    claim, known = record.claim, view.get(record.claim.key)
    if known is not None and known.holder != claim.holder:
        return False
    if known is not None and known.state == DONE:
        return Accepted(new=False)  # the first answer was lost
    refused = view.refusal(claim.owner, len(record.outcome))
    if refused is not None:
        return refused
    # A key that is not there was on a disk that is gone: its outcome is known all the same.
    done = KeyRecord(
        DONE,
        claim.cluster,
        claim.fingerprint,
        claim.holder,
        claim.node,
        record.attempt,
        0.0,
        date + int(claim.keep * 1_000_000),
        record.outcome,
        claim.owner,
    )
    view.put(claim.key, done, known)
    return Accepted(new=True)


def _release(view: _View, release: KeyRelease) -> bool:
    known = view.get(release.key)
    if known is None or known.holder != release.holder or known.state == DONE:
        return False
    if not release.begun and known.attempt == 1:
        view.delete(release.key, known)
    else:
        view.put(release.key, msgspec.structs.replace(known, state=IN_DOUBT), known)
    return True


def _size(record: KeyRecord) -> int:
    """Return for how many bytes a record is counted."""
    return _size_with(len(record.outcome))


def _size_with(outcome: int) -> int:
    """Return for how many bytes a record with an outcome of so many is counted, with that in the table ``key_ends``."""
    return record_size(_FIELDS + outcome) + record_size(0)


@final
class _View:
    """The tables in one transaction."""

    def __init__(self, index: Transaction) -> None:
        self._index = index
        self._quota = Quota(index, "keys")

    def get(self, key: bytes) -> KeyRecord | None:
        value = self._index.get(KEYS, key)
        return None if value is None else _DECODER.decode(value)

    def put(self, key: bytes, record: KeyRecord, before: KeyRecord | None) -> None:
        value = msgspec.msgpack.encode(record)
        if before is not None:
            self._index.delete(KEY_ENDS, _DATE.pack(before.ends) + key)
            if before.owner != record.owner:
                self._quota.add(before.owner, -_size(before))
                before = None
        self._index.put(KEYS, key, value)
        self._index.put(KEY_ENDS, _DATE.pack(record.ends) + key, b"")
        self._quota.add(record.owner, _size(record) - (0 if before is None else _size(before)))

    def delete(self, key: bytes, record: KeyRecord) -> None:
        self._index.delete(KEYS, key)
        self._index.delete(KEY_ENDS, _DATE.pack(record.ends) + key)
        self._quota.add(record.owner, -_size(record))

    def refusal(self, owner: str, size: int) -> ClaimRefused | None:
        """Return why a cluster may not have a record with an outcome of so many bytes."""
        excess = self._quota.excess(owner, _size_with(size))
        return None if excess is None else ClaimRefused(TOO_MANY, f"{excess} of keys and outcomes kept here")

    def ended(self, date: int) -> list[bytes]:
        """Delete the records that end until a date, 4,096 at most; return their keys."""
        due: list[bytes] = []
        for end, _ in self._index.items_from(KEY_ENDS, b"\0"):
            if _DATE.unpack_from(end)[0] > date or len(due) == _SWEPT:
                break
            due.append(end[_DATE.size :])
        for key in due:
            record = self.get(key)
            if record is None:
                raise LogDamaged("the outcomes are damaged: a key is to end that is not there")
            self.delete(key, record)
        return due
