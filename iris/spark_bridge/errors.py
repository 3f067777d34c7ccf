"""Errors of a durable log, on both sides of the bridge."""

from __future__ import annotations

from iris.kernel.errors import IrisError


class BridgeError(IrisError):
    """Base of the bridge's errors.  The log is as it was before the call."""


class StoreFull(BridgeError):
    """The disk, or the size the log may have, is used up.  Nothing was appended.

    The store remains usable: reading goes on, and appending does again once space is there.
    """


class QuotaExceeded(BridgeError):
    """A cluster has as much at a bridge as it may have, or all together have; the message says of what.

    Nothing was changed.  Trying again helps when something of it is gone.
    """


class StoreBusy(BridgeError):
    """Another process has this directory open.  Two writers would destroy the log."""


class LogDamaged(BridgeError):
    """Stored bytes are not the ones that were written: a checksum, a length or a number does not fit.

    The rest of the log remains readable.  Reading the same range again gives the same error.
    """


class DataLost(BridgeError):
    """Events that were asked for are no longer there: trimmed by retention, or the log was wiped and begun anew."""


class TierUnreachable(BridgeError):
    """The storage of a bridge's tier does not answer, or refuses to.

    Nothing is lost: what is not in the tier stays on the bridge's disk, and what is there can be read later.
    """


class StaleBatch(BridgeError):
    """A batch of a query that wrote a later one before: its checkpoint is older than the log.  Nothing was stored."""


class NotCopied(BridgeError):
    """Too few copies of the log have what was written.  It is in the log, without a promise that it stays.

    Trying again is harmless, and succeeds when enough copies have caught up.
    """


class BridgeUnreachable(BridgeError):
    """No member of the bridge answered in the time given.  Trying again later may succeed."""


class KafkaLost(BridgeError):
    """Kafka's client of a bridge can write nothing more in the order of what it was given; the member has ended.

    Nothing of what it had was confirmed, and publishers send it to other members.  Start the member again.  A connector
    (``iris connect kafka``) has ended like that when another one of its group has taken over.
    """
