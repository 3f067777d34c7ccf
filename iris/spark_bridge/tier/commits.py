"""Commits: what one bridge writes to the tier of one shard, in an order in which it may die at any step.

1. The first commit of a bridge that has opened the log repeats the last manifest under its own name.  The writer of
   that one finds it out, and writes no more.  A promoted copy writes in a later term: whatever the former primary still
   writes does not count.
2. An object is stored.  Nobody reads it before a manifest names it; what is left of a bridge that died here is removed
   by the next one.
3. A manifest names it.  From here it is in the tier.
4. The log notes it, and may let go of its file.  A log whose member died before reads the note from the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import pyarrow as pa

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import DataLost, LogDamaged
from iris.spark_bridge.log import SealedSegment, ShardState, Store, TierObject
from iris.spark_bridge.tier.manifest import (
    MAX_MANIFEST,
    Manifest,
    ManifestName,
    decode_manifest_untrusted,
    encode_manifest,
    shard_folder,
    term_of,
)
from iris.spark_bridge.tier.parquet import encode_segment
from iris.spark_bridge.tier.storage import UNFINISHED, Storage


@final
class ShardTier:
    """The tier of a shard.  Every call blocks; one thread at a time.

    Args:
        storage: storage of the tier.
        bridge: name of the bridge.
        shard: id of the shard.
        term: term of the log among its copies.
        writer: eight hexadecimal digits, made anew for each opening of the log.

    All calls raise ``TierUnreachable`` if the storage does not answer, and change nothing then that a reader sees.
    """

    def __init__(self, storage: Storage, *, bridge: str, shard: str, term: int, writer: str) -> None:
        self._storage = storage
        self._bridge = bridge
        self._shard = shard
        self._folder = shard_folder(bridge, shard)
        self._manifests = f"{self._folder}/_manifest"
        self._term = term
        self._writer = writer
        self._last: ManifestName | None = None
        """The manifest that counted when this writer looked last."""

    def _listed(self) -> list[ManifestName]:
        names = (ManifestName.parse(name) for name in self._storage.names(self._manifests))
        return sorted(name for name in names if name is not None)

    def newest(self) -> Sequence[TierObject]:
        """Return what the manifest names that counts; nothing if there is none.

        Raises:
            ConfigError: another bridge has this tier.
            LogDamaged: the manifest cannot be read.
        """
        name = self._find_newest()
        while name is not None:
            try:
                data = self._storage.get(f"{self._manifests}/{name}", most=MAX_MANIFEST)
            except LogDamaged:
                missed, name = name, self._find_newest()
                if name == missed:
                    raise
                continue  # a former primary that does not know yet has written others, and removed this one
            manifest = decode_manifest_untrusted(data, shard=self._shard, name=str(name))
            self._last = name
            return manifest.objects
        self._last = None
        return ()

    def _find_newest(self) -> ManifestName | None:
        names = self._listed()
        if not names:
            return None
        newest = names[-1]
        alike = [name for name in names if name.place == newest.place]
        if len(alike) > 1:
            raise ConfigError(
                f"two bridges have written the tier of shard {self._shard} at a time, in "
                f"{self._storage.url}/{self._manifests}: {alike[0]} and {alike[1]}. Stop the one whose log is a mere "
                "copy of the other's, and remove its manifest"
            )
        if newest.term > self._term:
            raise self._taken(newest)
        return newest

    def _taken(self, name: ManifestName) -> ConfigError:
        return ConfigError(
            f"another bridge has the tier of shard {self._shard} now: its writer {name.writer}, of term {name.term}, "
            f"has written {name}. This one, of term {self._term}, writes to it no more, and keeps what is on its disk"
        )

    def commit(self, objects: Sequence[TierObject]) -> None:
        """Let the tier be these objects; raise ConfigError if another bridge's manifest came first and counts."""
        before = self._listed()
        newest = before[-1] if before else None
        # Of an earlier term: a former primary that does not know yet.  What it writes now does not count, and when it
        # looks again it knows.
        if newest is not None and newest != self._last and newest.writer != self._writer and newest.term >= self._term:
            raise self._taken(newest)
        own = ManifestName(self._term, 1 if newest is None else newest.number + 1, self._writer)
        manifest = Manifest(bridge=self._bridge, shard=self._shard, objects=objects)
        self._storage.put(f"{self._manifests}/{own}", encode_manifest(manifest))
        after = self._listed()
        for other in after:
            # Of two that write at a time each looks when it has written: one of them sees the other, or both do.
            if other != own and other.place >= own.place:
                raise self._taken(other)
        self._last = own
        for name in after:
            if name.place < own.place and name != newest:
                self._storage.remove(f"{self._manifests}/{name}")

    def put(self, found: TierObject, data: pa.Buffer) -> None:
        """Store an object; it is in the tier when a manifest names it."""
        self._storage.put(f"{self._folder}/{found.name}", data)

    def remove(self, found: TierObject) -> None:
        """Remove an object that no manifest names any more."""
        self._storage.remove(f"{self._folder}/{found.name}")

    def sweep(self, objects: Sequence[TierObject]) -> list[str]:
        """Remove what bridges have left here that died before they committed it; return its names.

        Args:
            objects: objects that the manifest names.
        """
        named = {found.name for found in objects}
        orphans: list[str] = []
        for name in self._storage.names(self._folder):
            whole = name.removeprefix(UNFINISHED)
            term = term_of(whole)
            # Not of a later term: that is another bridge's, which goes on.
            if term is not None and term <= self._term and name not in named:
                self._storage.remove(f"{self._folder}/{name}")
                orphans.append(name)
        return orphans


def _is_made_here(store: Store, state: ShardState, found: TierObject) -> bool:
    """Return whether an object is what the segment of the log on this disk makes."""
    term = term_of(found.name)
    segment = SealedSegment(shard=state.number, epoch=state.epoch, first=found.first, end=found.end, size=found.size)
    try:
        return term is not None and encode_segment(store.tiering.chunks(segment), term=term)[0] == found
    except (DataLost, LogDamaged):
        return False


def reconcile(
    store: Store, shard: int, objects: Sequence[TierObject], *, forks: Callable[[int], Mapping[int, int]]
) -> list[TierObject]:
    """Let log and manifest say the same of a shard; return what the manifest has to name.

    What a bridge has committed that died before it noted that is noted, if it is what the log's own segment makes: a
    manifest alone proves nothing.  Otherwise it is stored anew.  What was trimmed is left out, and so is what
    the log has otherwise on its own disk, and what was given up when a copy was promoted by force.

    Args:
        store: the log.
        shard: number of the shard.
        objects: objects that the manifest names.
        forks: returns, by shard, the offset up to which a log of an earlier term is of the same history as this one.

    Raises:
        ConfigError: the tier has events that the log has not got, or lacks some that the log has nowhere else.
        StoreFull: there is no room to note it.
    """
    state = next(one for one in store.shards() if one.number == shard)
    known = {found.first: found for found in store.tiering.objects(shard)}
    kept: list[TierObject] = []
    for found in objects:
        term = term_of(found.name)
        if found.end <= state.earliest or (term is not None and found.end > forks(term).get(shard, found.end)):
            continue
        if known.get(found.first) == found or (_is_made_here(store, state, found) and store.tiering.note(shard, found)):
            kept.append(found)
        elif found.end > state.next or not store.tiering.is_local(shard, found.first, found.end):
            raise ConfigError(
                f"the tier holds {found.name} of shard {state.id}, which the log ends before or has otherwise: the log "
                "was put back to an older state, or another one has written there. Nothing in the tier is changed; put "
                "the log back that wrote it, or give another --tier"
            )
    named = {found.first for found in kept}
    for first, found in known.items():
        if first not in named and not store.tiering.forget(shard, first):
            raise ConfigError(
                f"the tier does not name {found.name} of shard {state.id}, which this log has nowhere else: give the "
                "--tier that it was written to"
            )
    return kept
