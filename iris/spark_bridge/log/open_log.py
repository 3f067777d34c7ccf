"""Open log: what the parts of a store share."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Generator
from pathlib import Path
from typing import final

from iris.spark_bridge.events.damage import DamageBook
from iris.spark_bridge.events.gaps import GapBook
from iris.spark_bridge.log.chunk_io import Tails
from iris.spark_bridge.log.index import Index
from iris.spark_bridge.log.publishers import Publishers
from iris.spark_bridge.log.records import GAPS, REMOVALS
from iris.spark_bridge.log.segments import SegmentFiles
from iris.spark_bridge.log.topics.removals import Removals
from iris.spark_bridge.log.transaction import Transaction


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenLog:
    """An open log: its files, and what is in memory of its index."""

    directory: Path
    index: Index
    files: SegmentFiles
    gaps: GapBook
    removals: Removals
    damage: DamageBook
    """All known damage."""
    publishers: Publishers = dataclasses.field(default_factory=Publishers)
    tails: Tails = dataclasses.field(default_factory=Tails)
    """Segments that are appended to."""
    writing: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    """Held by the thread that changes the index, and what is in memory of it."""

    @contextlib.contextmanager
    def changing(self) -> Generator[Transaction]:
        """Change the index; after an error what is in memory counts what was not stored, and is read again."""
        try:
            with self.index.write() as view:
                yield view
        except BaseException:
            self.publishers.clear()
            self.tails.topics.clear()
            with self.index.read() as view:
                self.gaps.reset(gap for _, gap in view.items(GAPS))
            raise


def open_log(directory: Path, index: Index, files: SegmentFiles, damage: DamageBook) -> OpenLog:
    """Read what is to be in memory."""
    with index.read() as view:
        gaps, removals = GapBook(gap for _, gap in view.items(GAPS)), Removals(view.items(REMOVALS))
    return OpenLog(directory=directory, index=index, files=files, gaps=gaps, removals=removals, damage=damage)
