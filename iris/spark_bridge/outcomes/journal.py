"""Journal of outcomes: an LMDB environment beside the log, in which each key has one record.

========= ==================================================== ====================================================
state     what it is                                           a claim of another member
========= ==================================================== ====================================================
CLAIMED   a member may be running the request                  waits; when that member is gone or its time is over,
                                                               as IN_DOUBT
IN_DOUBT  a member began it, and nobody knows how far it came  is refused; or with ``rerun`` takes over, as the next
                                                               attempt
DONE      the outcome is known                                 gets the outcome
========= ==================================================== ====================================================

A claim is named by 16 random bytes, its *holder*.  Only the last holder of a key may record the outcome: a member that
was taken for lost, and is not, changes nothing any more once another one has taken over.

With an outcome come the events of its outbox.  The transaction that writes the outcome gives them numbers of one
publisher, which is this journal, and notes them in the table ``pending``.  After it they are appended to the log, and
again after a crash, when the log recognizes them by their numbers.  So either both are there in the end, or neither.

One transaction makes what came since the last one, and its commit is synchronous.  Claims that change nothing cost no
write.  Records end at their date; the table ``ends`` finds those that are due.
"""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, final

import lmdb
import msgspec

from iris.security.files import make_directories
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log import CheckedTable, is_full

MAX_KEYS: Final = 4_000_000
"""Keys of all clusters together: 1 GB with small outcomes."""
MAX_KEYS_OF_CLUSTER: Final = 2_000_000

_MAP_BYTES: Final = 16 * 1024 * 1024 * 1024
"""Address space, not memory."""
_SWEPT: Final = 4096
"""Records that end in one transaction: 20 ms."""

_PUBLISHER: Final = b"publisher"
_LAST: Final = b"last"
"""The last number of an event."""

_DATE: Final = struct.Struct(">Q")
_COUNT: Final = struct.Struct(">Q")
_NUMBER: Final = struct.Struct(">Q")
_TABLES: Final = ("records", "ends", "counts", "pending", "state")

CLAIMED: Final = 0
IN_DOUBT: Final = 1
DONE: Final = 2


@final
class KeyRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one key."""

    state: int
    cluster: str
    """That serves the request."""
    fingerprint: bytes
    """Of what the request asks for."""
    holder: bytes
    """Of the last claim."""
    node: str
    """That made it."""
    attempt: int
    budget: float
    """Seconds from when it was claimed, after which its member has stopped."""
    ends: int
    """Microseconds since 1970."""
    outcome: bytes = b""


_DECODER: Final = msgspec.msgpack.Decoder(KeyRecord)


@final
class OutboxEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event that is stored together with an outcome."""

    cluster: str
    """That publishes it."""
    topic: str
    key: str | None
    headers: dict[str, str]
    data: bytes
    packed: bool


_EVENTS: Final = msgspec.msgpack.Decoder(list[OutboxEvent])


class KeyClaim(NamedTuple):
    """A member wants to run the request of a key."""

    key: bytes
    cluster: str
    fingerprint: bytes
    holder: bytes
    node: str
    budget: float
    keep: float
    """Seconds for which the key is remembered."""
    rerun: bool
    gone: bytes = b""
    """A holder that is known to have ended."""


class KeyOutcome(NamedTuple):
    """A member knows what the request of a key came to."""

    claim: KeyClaim
    attempt: int
    outcome: bytes
    events: Sequence[OutboxEvent] = ()


class KeyRelease(NamedTuple):
    """A member has stopped without an outcome."""

    key: bytes
    holder: bytes
    begun: bool
    """Whether the handler was called."""


Operation = KeyClaim | KeyOutcome | KeyRelease


class Granted(NamedTuple):
    """The claim is the member's: it is to run the request."""

    attempt: int


class Held(NamedTuple):
    """Another member may be at it."""

    holder: bytes
    node: str
    left: float
    """Seconds, at most."""


class Known(NamedTuple):
    """The outcome."""

    outcome: bytes


class Doubtful(NamedTuple):
    """The request was begun, and how far it came is not known."""

    node: str
    attempt: int


class ClaimRefused(NamedTuple):
    """The claim is refused, and why."""

    code: str
    text: str


class Accepted(NamedTuple):
    """The outcome is recorded, now or before."""

    first: int
    """Number of the first of its events; 0: it has none, or they were noted before."""


Verdict = Granted | Held | Known | Doubtful | ClaimRefused | Accepted | bool
"""Of a claim; of an outcome and a release whether it counted."""


@final
class OutcomeJournal:
    """The journal of one member of a bridge.  Every call blocks; one thread at a time.

    Args:
        directory: of the environment; made if it is not there.
        publisher: 16 random bytes, for a new journal.
        now: seconds on a clock that nobody sets.  Claims that were found on the disk count as made now.

    Raises:
        LogDamaged: what lies in the directory is no journal.
        StoreFull: there is no room to make one.
    """

    def __init__(self, directory: Path, publisher: bytes, now: float) -> None:
        make_directories(directory)
        with _translated():
            self._environment = lmdb.open(
                str(directory), map_size=_MAP_BYTES, mode=0o600, max_dbs=len(_TABLES), max_readers=16
            )
            self._databases = {name: self._environment.open_db(name.encode()) for name in _TABLES}
            with self._environment.begin(write=True) as transaction:
                state = CheckedTable(transaction, self._databases["state"], "state")
                known = state.get(_PUBLISHER)
                if known is None:
                    known = publisher
                    state.put(_PUBLISHER, publisher)
        self.publisher: Final = known.hex()
        """That events of outboxes have in the log."""
        self._opened = now
        self._until: dict[bytes, float] = {}
        """By key, when its claim is over at the latest; only of claims that were made since this was opened."""

    def apply(
        self,
        operations: Sequence[Operation],
        stored: Sequence[int] = (),
        *,
        date: int,
        now: float,
        may_forget: bool,
    ) -> list[Verdict]:
        """Do what was asked, in this order; it is on the disk when this returns.

        Args:
            operations: claims, records and releases.
            stored: the first numbers of events that are in the log.
            date: microseconds since 1970.
            now: seconds on the clock of ``__init__``.
            may_forget: whether a record whose date is over counts as none.

        Raises:
            StoreFull: there is no room; nothing was changed.
            LogDamaged: a record is not what was written.
        """
        until = dict[bytes, float]()
        with _translated(), self._environment.begin(write=True) as transaction:
            view = _View(transaction, self._databases)
            for first in stored:
                view.settle(first)
            verdicts: list[Verdict] = []
            for operation in operations:
                match operation:
                    case KeyClaim():
                        verdicts.append(self._claim(view, operation, date, now, until, may_forget=may_forget))
                    case KeyOutcome():
                        verdicts.append(_record(view, operation, date))
                    case KeyRelease():
                        verdicts.append(_release(view, operation))
        self._until |= until
        for operation in operations:
            if not isinstance(operation, KeyClaim):
                self._until.pop(operation.key if isinstance(operation, KeyRelease) else operation.claim.key, None)
        return verdicts

    def _claim(
        self, view: _View, claim: KeyClaim, date: int, now: float, until: dict[bytes, float], *, may_forget: bool
    ) -> Verdict:
        known = view.get(claim.key)
        if known is not None and known.ends <= date and may_forget:
            view.delete(claim.key, known)
            known = None
        if known is None:
            if view.count() >= MAX_KEYS or view.count_of(claim.cluster) >= MAX_KEYS_OF_CLUSTER:
                text = f"{view.count()} keys are remembered, {view.count_of(claim.cluster)} of {claim.cluster!r}"
                return ClaimRefused("too_many_keys", text)
            return self._grant(view, claim, None, 1, date, now, until)
        if known.fingerprint != claim.fingerprint:
            return ClaimRefused("key_reused", "")
        if known.state == DONE:
            return Known(known.outcome)
        if known.state == CLAIMED and known.holder == claim.holder:
            return Granted(known.attempt)  # the first answer was lost
        over = until.get(claim.key) or self._until.get(claim.key) or self._opened + known.budget
        if known.state == CLAIMED and now < over and known.holder != claim.gone:
            return Held(known.holder, known.node, over - now)
        if not claim.rerun:
            return Doubtful(known.node, known.attempt)
        return self._grant(view, claim, known, known.attempt + 1, date, now, until)

    def _grant(
        self,
        view: _View,
        claim: KeyClaim,
        known: KeyRecord | None,
        attempt: int,
        date: int,
        now: float,
        until: dict[bytes, float],
    ) -> Granted:
        ends = date + int(max(claim.keep, claim.budget) * 1_000_000)
        view.put(
            claim.key,
            KeyRecord(CLAIMED, claim.cluster, claim.fingerprint, claim.holder, claim.node, attempt, claim.budget, ends),
            known,
        )
        until[claim.key] = now + claim.budget
        return Granted(attempt)

    def sweep(self, date: int) -> int:
        """Forget records whose date is over, 4,096 at most; return how many."""
        with _translated(), self._environment.begin(write=True) as transaction:
            view = _View(transaction, self._databases)
            ended = view.ended(date)
            for key in ended:
                self._until.pop(key, None)
            return len(ended)

    def pending(self) -> list[tuple[int, list[OutboxEvent]]]:
        """Return the events that may not be in the log, each list with its first number, in their order."""
        with _translated(), self._environment.begin() as transaction:
            return _View(transaction, self._databases).pending()

    def count(self) -> int:
        """Return how many keys are remembered."""
        with _translated(), self._environment.begin() as transaction:
            return _View(transaction, self._databases).count()

    def close(self) -> None:
        """Close the journal."""
        self._environment.close()


def _record(view: _View, record: KeyOutcome, date: int) -> Accepted | bool:
    claim, known = record.claim, view.get(record.claim.key)
    if known is not None and known.holder != claim.holder:
        return False
    if known is not None and known.state == DONE:
        return Accepted(0)  # the first answer was lost
    # A key that is not there was on a disk that is gone: its outcome is known all the same.
    ends = date + int(claim.keep * 1_000_000)
    done = KeyRecord(
        DONE, claim.cluster, claim.fingerprint, claim.holder, claim.node, record.attempt, 0.0, ends, record.outcome
    )
    view.put(claim.key, done, known)
    return Accepted(view.note(record.events) if record.events else 0)


def _release(view: _View, release: KeyRelease) -> bool:
    known = view.get(release.key)
    if known is None or known.holder != release.holder or known.state == DONE:
        return False
    if not release.begun and known.attempt == 1:
        view.delete(release.key, known)
    else:
        view.put(release.key, msgspec.structs.replace(known, state=IN_DOUBT), known)
    return True


@final
class _View:
    """The tables in one transaction."""

    def __init__(self, transaction: lmdb.Transaction[bytes], databases: Mapping[str, lmdb._Database]) -> None:
        self._transaction, self._databases = transaction, databases
        self._records, self._ends, self._counts, self._pending, self._state = (
            CheckedTable(transaction, databases[name], name) for name in _TABLES
        )

    def get(self, key: bytes) -> KeyRecord | None:
        value = self._records.get(key)
        return None if value is None else _DECODER.decode(value)

    def put(self, key: bytes, record: KeyRecord, before: KeyRecord | None) -> None:
        if before is None:
            self._add(record.cluster, 1)
        else:
            self._ends.delete(_DATE.pack(before.ends) + key)
        self._records.put(key, msgspec.msgpack.encode(record))
        self._ends.put(_DATE.pack(record.ends) + key, b"")

    def delete(self, key: bytes, record: KeyRecord) -> None:
        self._records.delete(key)
        self._ends.delete(_DATE.pack(record.ends) + key)
        self._add(record.cluster, -1)

    def ended(self, date: int) -> list[bytes]:
        """Delete the records that end until a date, 4,096 at most; return their keys."""
        due: list[bytes] = []
        for end, _ in self._ends.records_from(b"\0"):
            if _DATE.unpack_from(end)[0] > date or len(due) == _SWEPT:
                break
            due.append(end[_DATE.size :])
        for key in due:
            record = self.get(key)
            if record is None:
                raise LogDamaged("the outcomes are damaged: a key is to end that is not there")
            self.delete(key, record)
        return due

    def note(self, events: Sequence[OutboxEvent]) -> int:
        """Write down events that are to be stored; return the number of the first one."""
        value = self._state.get(_LAST)
        last = 0 if value is None else _NUMBER.unpack(value)[0]
        self._state.put(_LAST, _NUMBER.pack(last + len(events)))
        self._pending.put(_NUMBER.pack(last + 1), msgspec.msgpack.encode(events))
        return last + 1

    def settle(self, first: int) -> None:
        self._pending.delete(_NUMBER.pack(first))

    def pending(self) -> list[tuple[int, list[OutboxEvent]]]:
        return [(_NUMBER.unpack(number)[0], _EVENTS.decode(value)) for number, value in self._pending.records()]

    def count(self) -> int:
        entries: int = self._transaction.stat(self._databases["records"])["entries"]
        return entries

    def count_of(self, cluster: str) -> int:
        value = self._counts.get(cluster.encode())
        return 0 if value is None else _COUNT.unpack(value)[0]

    def _add(self, cluster: str, number: int) -> None:
        self._counts.put(cluster.encode(), _COUNT.pack(self.count_of(cluster) + number))


@contextlib.contextmanager
def _translated() -> Generator[None]:
    """Turn LMDB's errors into the log's."""
    try:
        yield
    except (struct.error, msgspec.MsgspecError) as error:
        raise LogDamaged(f"the outcomes are damaged: {error}") from error
    except lmdb.MapFullError as error:
        raise StoreFull("there is no room for more outcomes") from error
    except lmdb.Error as error:
        number = getattr(error, "code", 0)
        if is_full(OSError(number, "")) or number == errno.EIO:
            raise StoreFull(f"no room on the disk for outcomes: {error}") from error
        raise LogDamaged(f"the outcomes cannot be used: {error}") from error
