"""Terms: which log of a bridge counts when there are several copies of it (sans-IO).

A *term* is the time of one primary; Kafka calls its number the leader epoch, PostgreSQL the timeline.  A promotion
begins the next term.  A copy *promises* to follow no primary of a lower term, and then reports nothing to it.  So a
former primary cannot have enough copies, and confirms nothing.

How many copies have to promise (as in BookKeeper's fencing): so many that those which have not are fewer than the
primary needs for a confirmation, and more than half, so that two promotions cannot begin the same term.  What was
confirmed is then at one of them at least, and the one that has most has all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, final

import msgspec

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import read_whole
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log import GROUP_IDLE
from iris.spark_bridge.tier import Tier

DEFAULT_COPY: Final = "copy"
"""Name of a copy that is not given one."""


@final
class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which a bridge was started, and with which a promoted copy has to go on."""

    topics: Sequence[str] = ()
    clusters: Sequence[str] = ()
    readers: Sequence[str] | None = None
    shards: Sequence[int] = (0,)
    of: int | None = None
    member: str | None = None
    min_copies: int = 0
    max_age: float | None = None
    max_bytes: int | None = None
    keep_unread: bool = False
    group_idle: float = GROUP_IDLE
    tier: Tier | None = None


@final
class LogState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a log among its copies.

    Attributes:
        role: ``primary`` if this log is the origin, ``copy`` if it follows one.
        term: term in which this log was written; for a copy, only until it has a position. 1 for a log without copies.
        promised: lowest term of a primary that this copy follows.
        history: each term after the first, with the offsets at which it began, by number of shard.
        revision: version of the fields below; it grows with each change, also from one primary to the next.
        copies: names of the copies that the primary knows, with the revision in which each was added.
        counted: names of the copies whose confirmations count: every copy knows of them.
        settings: settings of the bridge.
    """

    role: Literal["primary", "copy"] = "primary"
    term: int = 1
    promised: int = 1
    history: Sequence[tuple[int, Mapping[int, int]]] = ()
    revision: int = 0
    copies: Mapping[str, int] = msgspec.field(default_factory=dict[str, int])
    counted: Sequence[str] = ()
    settings: Settings = Settings()
    doubted: Sequence[str] = ()
    """Copies that counted and came back on another disk: what they promised is lost, perhaps to a later primary.  They
    count for no confirmation until other copies have shown that they follow."""
    disk: str = ""
    """Identity of the disk that this log is on: a random text made with the log.  Empty: it was made by 0.9."""
    disks: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Of a primary: the disk on which each copy was when it came last, if it says so."""
    emptied: bool = False
    """True of a copy that counted, and began anew with nothing: what it confirmed before is lost until it is whole."""

    def forks(self, term: int) -> dict[int, int]:
        """Return, by shard, the offset up to which a log of an earlier term has the same history; empty: all of it.

        If the term is not in this history, as that of a copy which was promoted by force beside this one, nothing
        counts as the same: the offset at which it left this history is unknown.
        """
        later = [starts for begun, starts in self.history if begun > term]
        if not later:
            return {}
        known = term <= 1 or any(begun == term for begun, _ in self.history)
        return dict(later[0]) if known else dict.fromkeys(later[0], 0)

    def promoted(self, name: str, term: int, offsets: Mapping[int, int], min_copies: int | None) -> LogState:
        """Return the state of the copy ``name`` as the primary of a new term."""
        settings = self.settings
        if min_copies is not None:
            settings = msgspec.structs.replace(settings, min_copies=min_copies)
        return LogState(
            role="primary",
            term=term,
            promised=term,
            history=(*self.history, (term, dict(offsets))),
            revision=self.revision + 1,
            copies={copy: added for copy, added in self.copies.items() if copy != name},
            counted=tuple(copy for copy in self.counted if copy != name),
            settings=settings,
            disk=self.disk,
            disks={copy: disk for copy, disk in self.disks.items() if copy != name},
        )


def encode_state(state: LogState) -> bytes:
    """Return a state as it is stored and as it travels."""
    return msgspec.json.encode(state)


def decode_state_untrusted(data: bytes | None) -> LogState:
    """Read a state; without data, return the state of a log which never had a copy.

    Raises:
        LogDamaged: it is something else.
    """
    if data is None:
        return LogState()
    try:
        return msgspec.json.decode(data, type=LogState)
    except msgspec.MsgspecError as error:
        raise LogDamaged(f"what this log is among its copies cannot be read: {error}") from None


def needed_promises(copies: int, min_copies: int) -> int:
    """Return how many of the copies have to promise before one may be promoted."""
    return max(copies - max(min_copies, 1) + 1, copies // 2 + 1)


def needed_acceptances(copies: int, min_copies: int) -> int:
    """Return how many of its copies a primary that was away has to meet before it is read and confirms again."""
    return min(copies, min_copies)


def split_followed(text: str) -> tuple[str, int]:
    """Read ``NAME/SHARD``; raise ConfigError for anything else."""
    name, slash, number = text.rpartition("/")
    shard = read_whole(number)
    if not slash or not name or shard is None:
        raise ConfigError(f"{text!r} names no shard of a bridge: give NAME/SHARD, for example bridge/0")
    return name, shard
