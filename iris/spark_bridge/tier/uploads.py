"""Uploads: moves what is sealed to the tier while a bridge runs.

Nothing here holds up publishers or readers of the local log.  As long as the storage does not answer, segments stay on
the bridge's disk, also those that retention would let go, and it is tried again.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar, final

import pyarrow as pa
import trio

from iris.kernel.errors import ConfigError
from iris.kernel.names import Entropy
from iris.kernel.tasks import run_in_thread
from iris.spark_bridge.errors import DataLost, LogDamaged, NotCopied, StoreFull, TierUnreachable
from iris.spark_bridge.log import SealedSegment, Store, TierObject
from iris.spark_bridge.tier.commits import ShardTier, reconcile
from iris.spark_bridge.tier.parquet import TierReader, encode_segment
from iris.spark_bridge.tier.storage import Storage, check_url

_log: Final = logging.getLogger("iris")
_T = TypeVar("_T")

_INTERVAL: Final = 1.0
"""Seconds between two looks for what is sealed: one look at the index."""

_LONGEST: Final = 30.0
"""Longest pause between attempts while the storage does not answer, in seconds."""

_WRITER_BYTES: Final = 4

_COPYING: Final = 10.0
"""Seconds that copies have to write what goes to the tier; it is tried again."""

HOUR: Final = 3600.0


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Settings of a tier, to which sealed segments go.

    Raises:
        ConfigError: the URL is none, or the time is not above 0.
    """

    url: str
    """A directory, or a URL as ``pyarrow.fs`` has it: ``s3://bucket/prefix?region=eu-central-1``."""
    seal_after: float = HOUR
    """Seconds after its first event in which a segment is sealed that is not full by then."""

    def __post_init__(self) -> None:
        check_url(self.url)
        if not (math.isfinite(self.seal_after) and self.seal_after > 0):
            raise ConfigError(f"tier: seal_after is {self.seal_after!r}: use seconds, more than 0")

    def absolute(self) -> Tier:
        """Return the same for a process that has another working directory."""
        return self if "://" in self.url else dataclasses.replace(self, url=str(Path(self.url).absolute()))


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TierStatus:
    """The tier of a shard, as its bridge sees it."""

    shard: int
    url: str
    objects: int
    bytes: int
    """Size of these objects, in bytes."""
    next: int
    """First offset after the events that are in the tier."""
    behind: int
    """Events that are sealed and not in the tier."""
    behind_bytes: int
    """Size of the segments of these events, in bytes."""
    failures: int
    """Attempts that failed since the bridge was started."""
    problem: str
    """Reason why nothing goes to the tier now; empty if nothing is wrong."""


@final
class _ShardUploads:
    """The uploads of one shard."""

    def __init__(self, tier: ShardTier, number: int) -> None:
        self.tier = tier
        self.number = number
        self.objects: Sequence[TierObject] | None = None
        """Objects that the manifest names. None until this bridge has opened the tier."""
        self.damaged: set[int] = set()
        """First offsets of segments that cannot be read."""
        self.ended = False
        """True once uploads ended: another bridge has the tier, or it is another log's."""
        self.failures = 0
        self.problem = ""


class Primary(Protocol):
    """Port of the uploads to the member whose log they move, and to its copies."""

    @property
    def bridge(self) -> str:
        """Name of the bridge."""
        ...

    @property
    def shards(self) -> Sequence[int]:
        """Numbers of the member's shards."""
        ...

    @property
    def term(self) -> int:
        """Term of the log among its copies."""
        ...

    def forks(self, term: int, /) -> Mapping[int, int]:
        """Return, by shard, the offset up to which a log of an earlier term is of the same history as this one."""
        ...

    async def wait_copied(self, timeout: float, /) -> None:
        """Wait until enough copies have all of the log; raise NotCopied if not within ``timeout`` seconds."""
        ...


class Clock(Protocol):
    """Port of the uploads to the wall clock."""

    def now(self) -> int:
        """Return microseconds since 1970."""
        ...


@final
class TierUploads:
    """The tier of one member's log.

    Args:
        store: the log.
        tier: settings of the tier.
        primary: the member.
        clock: tells when a segment is to be sealed.
        entropy: makes the id of this writer.
    """

    def __init__(self, store: Store, tier: Tier, primary: Primary, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._settings = tier
        self._primary = primary
        self._clock = clock
        bridge = self._bridge = primary.bridge
        storage = Storage(tier.url)
        storage.open()
        writer = entropy(_WRITER_BYTES).hex()
        self._shards = [
            _ShardUploads(
                ShardTier(storage, bridge=bridge, shard=state.id, term=primary.term, writer=writer),
                state.number,
            )
            for state in store.shards()
            if state.number in primary.shards
        ]
        store.tiering.attach(TierReader(storage, bridge))

    def __repr__(self) -> str:
        return f"<TierUploads to {self._settings.url}>"

    def statuses(self) -> list[TierStatus]:
        """Return the progress of the tier of each shard; this reads the index."""
        sealed = self._store.tiering.sealed()
        found: list[TierStatus] = []
        for shard in self._shards:
            objects = self._store.tiering.objects(shard.number)
            waiting = [segment for segment in sealed if segment.shard == shard.number]
            found.append(
                TierStatus(
                    shard=shard.number,
                    url=self._settings.url,
                    objects=len(objects),
                    bytes=sum(one.size for one in objects),
                    next=objects[-1].end if objects else 0,
                    behind=sum(segment.end - segment.first for segment in waiting),
                    behind_bytes=sum(segment.size for segment in waiting),
                    failures=shard.failures,
                    problem=shard.problem,
                )
            )
        return found

    async def run(self) -> None:
        """Move what is sealed, until it is cancelled.  What it was at then is begun anew by the next bridge."""
        async with trio.open_nursery() as nursery:
            for shard in self._shards:
                nursery.start_soon(self._run, shard)

    async def _run(self, shard: _ShardUploads) -> None:
        pause = _INTERVAL
        while not shard.ended:
            try:
                await self.advance(shard.number)
                pause = _INTERVAL
            except (TierUnreachable, StoreFull, NotCopied) as error:
                self._note(shard, str(error), "it is tried again")
                pause = min(2 * pause, _LONGEST)
            except (ConfigError, LogDamaged) as error:
                shard.ended = True
                self._store.tiering.trust(shard.number, trusted=False)
                self._note(shard, str(error), "nothing goes there until the bridge is started again")
            await trio.sleep(pause)

    def _note(self, shard: _ShardUploads, problem: str, what: str) -> None:
        shard.failures += 1
        if problem != shard.problem:
            shard.problem = problem
            _log.warning(
                "the log of bridge %s stays on its disk, shard %d: %s; %s",
                self._bridge,
                shard.number,
                problem,
                what,
                extra={"bridge": self._bridge, "shard": shard.number, "reason": problem},
            )

    async def advance(self, number: int) -> None:
        """Move all that is sealed of a shard.

        Raises:
            TierUnreachable: the storage does not answer, or refuses.
            StoreFull: the log has no room to note what is in the tier.
            NotCopied: too few copies have what would go to the tier.
            ConfigError: another bridge has the tier, or it is another log's.
            LogDamaged: the manifest cannot be read.
        """
        shard = next(one for one in self._shards if one.number == number)
        seal = partial(self._store.tiering.seal, self._clock.now() - int(self._settings.seal_after * 1_000_000))
        await run_in_thread(seal)
        if shard.objects is None:
            await self._become_writer(shard)
        known = {found.name for found in self._store.tiering.objects(number)}
        gone = [found for found in shard.objects or () if found.name not in known]
        sealed = [
            segment
            for segment in await run_in_thread(self._store.tiering.sealed)
            if segment.shard == number and segment.first not in shard.damaged
        ]
        if gone or sealed:
            # A copy that is promoted now has what the manifest says from here on.
            await self._primary.wait_copied(_COPYING)
        if gone:
            await self._remove(shard, gone)
        for segment in sealed:
            await self._move(shard, segment)
        if shard.problem and not shard.damaged:
            shard.problem = ""
            _log.info(
                "the log of bridge %s goes to the tier again, shard %d",
                self._bridge,
                number,
                extra={"bridge": self._bridge, "shard": number},
            )

    async def _become_writer(self, shard: _ShardUploads) -> None:
        """Make this bridge the writer of a shard's tier."""
        found = await _ask(shard.tier.newest)
        settle = partial(reconcile, self._store, shard.number, found, forks=self._primary.forks)
        objects = await run_in_thread(settle)
        await self._primary.wait_copied(_COPYING)
        await _ask(partial(shard.tier.commit, objects))
        orphans = await _ask(partial(shard.tier.sweep, objects))
        if orphans:
            _log.warning(
                "removed %d objects from the tier of shard %d that a bridge had left unfinished: %s",
                len(orphans),
                shard.number,
                ", ".join(orphans),
                extra={"shard": shard.number, "count": len(orphans), "reason": ", ".join(orphans)},
            )
        shard.objects = objects
        self._store.tiering.trust(shard.number, trusted=True)

    async def _remove(self, shard: _ShardUploads, gone: Sequence[TierObject]) -> None:
        """Remove from the tier what was removed from the log by hand."""
        assert shard.objects is not None
        kept = [found for found in shard.objects if found not in gone]
        await _ask(partial(shard.tier.commit, kept))
        shard.objects = kept
        for found in gone:
            await _ask(partial(shard.tier.remove, found))

    async def _move(self, shard: _ShardUploads, segment: SealedSegment) -> None:
        assert shard.objects is not None
        try:
            found, data = await run_in_thread(self._encode, segment)
        except DataLost:
            return  # trimmed meanwhile
        except LogDamaged as error:
            shard.damaged.add(segment.first)
            self._note(shard, str(error), f"its segment from offset {segment.first} on does not go to the tier")
            return
        await _ask(partial(shard.tier.put, found, data))
        objects = [*shard.objects, found]
        await _ask(partial(shard.tier.commit, objects))
        # From here the segment is in the tier: the manifest names it. Behind the next line the log knows that, too.
        shard.objects = objects
        await run_in_thread(self._store.tiering.note, shard.number, found)

    def _encode(self, segment: SealedSegment) -> tuple[TierObject, pa.Buffer]:
        return encode_segment(self._store.tiering.chunks(segment), term=self._primary.term)


async def _ask(call: Callable[[], _T]) -> _T:
    """Ask the storage in a thread that a bridge which leaves does not wait for: it touches nothing of the log."""
    return await run_in_thread(call, abandon_on_cancel=True)
