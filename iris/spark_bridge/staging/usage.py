"""Quota of staging: how many bytes clusters have staged at a member, and how many each may."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final, final

from iris.kernel.config import KIB, MIB
from iris.spark_bridge.errors import QuotaExceeded

LEAST: Final = 64 * KIB
"""Least size that a file counts for, in bytes, so that files are bounded, too.  Tasks with less use the driver."""


@final
class Usage:
    """Quota: bytes that are staged, by batch and by the cluster that staged them.  Safe in any thread.

    Args:
        most: bytes of all clusters together.
        most_of_owner: bytes of one of them.
    """

    def __init__(self, *, most: int, most_of_owner: int) -> None:
        self._most = most
        self._most_of_owner = most_of_owner
        self._lock = threading.Lock()
        self._batches: dict[tuple[str, int], Counter[str]] = {}
        self._owners: Counter[str] = Counter()
        self._total = 0

    def __repr__(self) -> str:
        return f"<Usage: {self._total} bytes of {len(self._owners)} clusters>"

    @property
    def total(self) -> int:
        """Total of all clusters, in bytes."""
        return self._total

    def reserve(self, owner: str, size: int) -> None:
        """Add bytes that a cluster stages for no batch yet; raise QuotaExceeded, and add none, if they are too many."""
        with self._lock:
            if self._owners[owner] + size > self._most_of_owner:
                raise _refused(f"cluster {owner!r}", self._most_of_owner)
            if self._total + size > self._most:
                raise _refused("all clusters together", self._most)
            self._add(owner, size)

    def give_back(self, owner: str, size: int) -> None:
        """Subtract bytes of a cluster that have become part of no batch."""
        with self._lock:
            self._add(owner, -size)

    def put(self, owner: str, query: str, batch: int, size: int) -> None:
        """Count bytes that a cluster has staged for a batch."""
        with self._lock:
            self._batches.setdefault((query, batch), Counter())[owner] += size

    def put_found(self, owner: str, query: str, batch: int, size: int) -> None:
        """Count bytes that were there before, however many they are."""
        with self._lock:
            self._add(owner, size)
        self.put(owner, query, batch, size)

    def forget(self, query: str, batch: int) -> None:
        """A batch is gone."""
        with self._lock:
            for owner, size in self._batches.pop((query, batch), Counter[str]()).items():
                self._add(owner, -size)

    def _add(self, owner: str, size: int) -> None:
        self._total += size
        self._owners[owner] += size
        if not self._owners[owner]:
            del self._owners[owner]


def _refused(whose: str, most: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{whose} may have {most / MIB:,.0f} MiB staged at this member, and would have more: let batches be committed "
        "or given up, write smaller ones, or start the bridge with a larger --staged-mib"
    )
