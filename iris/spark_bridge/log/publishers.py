"""Publishers: what the log keeps of each, so that repeats are recognized and missing events noticed.

Two things are kept: the window of its last numbers (``iris.spark_bridge.log.dedup``) and what it has numbered on each
topic (``iris.spark_bridge.log.numbering``).  The index has both, and memory those that were used last.
"""

from __future__ import annotations

import logging
from typing import Final, final

from iris.kernel.config import MIB
from iris.kernel.names import account_of
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.log.dedup import PublisherMemory, PublisherWindow
from iris.spark_bridge.log.numbering import PublisherNumberings
from iris.spark_bridge.log.quota import Quota
from iris.spark_bridge.log.records import (
    BLOCKS,
    NUMBERINGS,
    PUBLISHERS,
    PublisherRecord,
    TopicNumbers,
    pack_number,
    unpack_number,
)
from iris.spark_bridge.log.transaction import Transaction

_log: Final = logging.getLogger("iris")

_WINDOWS: Final = 512 * MIB
"""Size of publishers' windows that stay in memory, in bytes: 3,000 large ones.  Others are read again when their
publishers publish."""

_WINDOWS_OF_OWNER: Final = 128 * MIB
"""Share of the publishers of one cluster in these, in bytes."""

_NUMBERINGS: Final = 128 * MIB
"""Size of publishers' numbers on their topics that stay in memory, in bytes."""

_NUMBERINGS_OF_OWNER: Final = 32 * MIB
"""Share of the publishers of one cluster in these, in bytes: 50,000 topics."""

_UNKNOWN: Final = PublisherRecord()


@final
class Publishers:
    """Records of publishers.  Its caller holds the lock of the log's writers."""

    def __init__(self) -> None:
        self._windows: PublisherMemory[PublisherWindow] = PublisherMemory(
            most=_WINDOWS, most_of_owner=_WINDOWS_OF_OWNER
        )
        self._numberings: PublisherMemory[PublisherNumberings] = PublisherMemory(
            most=_NUMBERINGS, most_of_owner=_NUMBERINGS_OF_OWNER
        )

    def clear(self) -> None:
        """Keep nothing in memory: a transaction has failed, and the truth is in the index."""
        self._windows.clear()
        self._numberings.clear()

    def window(self, view: Transaction, publisher: str) -> PublisherWindow:
        """Return the window of a publisher; ``write`` keeps it."""
        known = self._windows.get(publisher)
        return PublisherWindow(read_blocks(view, bytes.fromhex(publisher))) if known is None else known

    def numberings(self, view: Transaction, publisher: str) -> PublisherNumberings:
        """Return what a publisher has numbered; ``write`` keeps it."""
        known = self._numberings.get(publisher)
        if known is not None:
            return known
        found = sorted(view.under(NUMBERINGS, bytes.fromhex(publisher)), key=lambda entry: entry[1].timestamp)
        return PublisherNumberings([(topic.decode(), numbers.numbering) for topic, numbers in found])

    def write_numberings(
        self, view: Transaction, publisher: str, cluster: str, numberings: PublisherNumberings, now: int
    ) -> None:
        """Write what a publisher has numbered on the topics that have changed."""
        key = bytes.fromhex(publisher)
        changed: list[tuple[bytes, TopicNumbers]] = []
        for topic in numberings.changed:
            numbering = numberings.topics[topic]
            numberings.count(topic, numbering)
            changed.append((key + topic.encode(), TopicNumbers(numbering, now)))
        view.put_all(NUMBERINGS, changed)
        for topic in numberings.expired:
            view.delete(NUMBERINGS, key + topic.encode())
        numberings.changed.clear()
        numberings.expired.clear()
        self._numberings.keep(publisher, cluster, numberings, numberings.memory)

    def write(
        self,
        view: Transaction,
        publisher: str,
        window: PublisherWindow,
        now: int,
        *,
        numbered: int | None = None,
        owner: str = "",
    ) -> bool:
        """Write what has changed of a publisher; return whether it takes other room in the log than before.

        Args:
            view: the transaction.
            publisher: id of the publisher.
            window: its window.
            now: time at which its last event arrived, in microseconds since 1970.
            numbered: size of its numberings, in bytes. None: as large as before.
            owner: cluster for which that is counted; "": it is not known now.
        """
        key = bytes.fromhex(publisher)
        for block in window.changed:
            view.put(BLOCKS, key + pack_number(block), bytes(window.blocks[block]))
        for block in window.expired:
            view.delete(BLOCKS, key + pack_number(block))
        window.changed.clear()
        window.expired.clear()
        self._windows.keep(publisher, owner, window, window.memory)
        known = view.get(PUBLISHERS, key)
        before = known or _UNKNOWN
        if numbered is None:
            numbered = before.numbered
        record = PublisherRecord(now, len(window.blocks), numbered, owner or before.owner)
        view.put(PUBLISHERS, key, record)
        if known is not None and record[1:] == known[1:]:
            return False
        if known is not None:
            Quota(view, "publishers").add(known.owner, -known.size)
        Quota(view, "publishers").add(record.owner, record.size)
        return True

    def bound(self, view: Transaction, owner: str) -> None:
        """Forget the publishers of a cluster that were silent for longest, if too much is kept of them."""
        surplus = Quota(view, "publishers").surplus(owner)
        if surplus is None:
            return
        crowded, size = surplus
        publishers = _oldest(view, crowded, size)
        for publisher in publishers:
            self._forget(view, publisher)
        _log.warning(
            "%d publishers of cluster %s are forgotten, of all those that it had in a day: what they send again counts "
            "as new",
            len(publishers),
            crowded,
            extra={"cluster": crowded, "count": len(publishers)},
        )

    def forget_silent(self, view: Transaction, before: int) -> int:
        """Forget the publishers whose last event arrived before a time; return how many."""
        silent = [key for key, record in view.items(PUBLISHERS) if record.timestamp < before]
        for publisher in silent:
            self._forget(view, publisher)
        return len(silent)

    def _forget(self, view: Transaction, publisher: bytes) -> None:
        for block in read_blocks(view, publisher):
            view.delete(BLOCKS, publisher + pack_number(block))
        for topic in [topic for topic, _ in view.under(NUMBERINGS, publisher)]:
            view.delete(NUMBERINGS, publisher + topic)
        record = view.get(PUBLISHERS, publisher)
        if record is not None:
            view.delete(PUBLISHERS, publisher)
            Quota(view, "publishers").add(record.owner, -record.size)
        self._windows.forget(publisher.hex())
        self._numberings.forget(publisher.hex())


def read_blocks(view: Transaction, publisher: bytes) -> dict[int, bytes]:
    """Return the blocks of a publisher's window."""
    blocks = {unpack_number(key): bits for key, bits in view.under(BLOCKS, publisher)}
    expected = (view.get(PUBLISHERS, publisher) or _UNKNOWN).blocks
    if len(blocks) != expected:
        raise LogDamaged(
            f"the index is damaged: of publisher {publisher.hex()} it has {len(blocks)} blocks, not {expected}"
        )
    return blocks


def _oldest(view: Transaction, account: str, size: int) -> list[bytes]:
    """Return the publishers of an account whose last events are the oldest, which have so many bytes together."""
    own = sorted(
        (record.timestamp, key, record.size)
        for key, record in view.items(PUBLISHERS)
        if account_of(record.owner) == account
    )
    found: list[bytes] = []
    for _, key, counted in own:
        if size <= 0:
            break
        found.append(key)
        size -= counted
    return found
