"""A bridge's offsets as Spark stores them, and the ranges that a batch reads: arithmetic, without a bridge or Spark.

An offset, as it stands in a checkpoint::

    {"0@9b60a932724f3967": 1200, "1@acd8e0da10c8989c": 1180}

names for each shard the next event.  The id of a shard holds its epoch, so the offsets of a log that was wiped do not
fit the new one.  Two further keys stand in the offsets around the first batch:

- ``initial``: the query begins here; no batch ended here.  Spark asks for the offset again when it repeats the first
  batch after a crash, and by then "latest" is somewhere else.
- ``from``: where the batch that ends here began, as far as the offset before does not determine it: shards that are
  new, or all of them if that offset was initial.  Spark has stored it, so a batch that is repeated has the same rows.
  A query that goes on without what is damaged has all of them there: damage is counted behind the batch that met it.

Shards that an offset does not name are read from their earliest event: nothing that was published is skipped because
a shard is new.  So it is with topics, for which two more keys stand there:

- ``topics``: the patterns, or the regular expression, of the topics that were read up to here, if these are not all.
- ``before``: pairs of such topics, and of the offsets below which these had been read before topics were added.  The
  query has gone back to the earliest events, and reads up to these offsets what is on the added topics alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast, final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.errors import DataLost
from iris.spark_bridge.protocol import Extent

EARLIEST: Final = -2
LATEST: Final = -1
"""Numbers that Kafka uses in the place of an offset."""


Where = Literal["earliest", "latest"]


Position = Where | Mapping[str, int]


_INITIAL: Final = "initial"
_FROM: Final = "from"
_LOST: Final = "lost"
_TOPICS: Final = "topics"
_BEFORE: Final = "before"


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """The topics that a query reads: all, if there are neither patterns nor an expression."""

    patterns: tuple[str, ...] = ()
    regex: str | None = None

    def added_to(self, others: Sequence[TopicSelection]) -> TopicSelection | None:
        """Return what of this is not in each of the others, or more of it; None: nothing, as far as patterns say so."""
        if not self.patterns or not all(other.patterns for other in others):
            return self
        added = [pattern for pattern in self.patterns if not all(pattern in other.patterns for other in others)]
        return TopicSelection(patterns=tuple(added)) if added else None

    def to_json(self) -> list[str] | str:
        """Return what stands in a checkpoint."""
        return [*self.patterns] if self.regex is None else self.regex


def _selection(value: object) -> TopicSelection | None:
    if isinstance(value, str):
        return TopicSelection(regex=value)
    patterns = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(pattern, str) for pattern in patterns):
        return None
    return TopicSelection(patterns=tuple(cast("list[str]", patterns)))


Before = tuple[TopicSelection, Mapping[str, int]]
"""Topics, and the offsets below which these were read."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The position of a query."""

    next: Mapping[str, int]
    initial: bool = False
    began: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    lost: int = 0
    """Events that were missing from the log up to here and that the query went on without."""
    topics: TopicSelection | None = None
    """Topics that were read. None: all of them, or an earlier version has written the checkpoint."""
    before: tuple[Before, ...] = ()
    """Topics and offsets read before each addition of topics, as long as the added topics are read up to there."""

    @property
    def marks(self) -> dict[str, int]:
        """Each shard's offset to which the query had read when topics were added."""
        marks: dict[str, int] = {}
        for _, offsets in self.before:
            for shard, offset in offsets.items():
                marks[shard] = max(offset, marks.get(shard, 0))
        return marks

    def go_back(self, topics: TopicSelection, extents: Mapping[str, Extent]) -> Offsets:
        """Return the position from which a query reads that goes on here with other topics."""
        changed = dataclasses.replace(self, topics=topics)
        if self.topics in (None, topics):
            return changed
        before = (*self.before, (self.topics, self.next))
        if topics.added_to([selection for selection, _ in before]) is None:
            return changed
        earliest = {shard: extent.earliest for shard, extent in extents.items()}
        following = {shard: min(at, earliest.get(shard, at)) for shard, at in self.next.items()}
        return dataclasses.replace(changed, next=following, initial=True, before=before)

    def caught_up(self) -> Offsets:
        """Return the position behind all that was read before topics were added."""
        marks = self.marks
        following = {shard: max(at, marks.get(shard, 0)) for shard, at in self.next.items()}
        return dataclasses.replace(self, next=following, initial=True, before=())

    def to_json(self) -> dict[str, Any]:
        """Return what Spark stores."""
        value: dict[str, Any] = dict(self.next)
        if self.initial:
            value[_INITIAL] = True
        if self.began:
            value[_FROM] = dict(self.began)
        if self.lost:
            value[_LOST] = self.lost
        if self.topics not in (None, TopicSelection()):
            value[_TOPICS] = self.topics.to_json()
        if self.before:
            value[_BEFORE] = [[topics.to_json(), dict(offsets)] for topics, offsets in self.before]
        return value


def parse_offsets(value: Mapping[str, Any]) -> Offsets:
    """Read what Spark stored; raise ConfigError unless ``Offsets.to_json`` wrote it."""
    others = (_INITIAL, _FROM, _LOST, _TOPICS, _BEFORE)
    following = {shard: offset for shard, offset in value.items() if shard not in others}
    began, lost = value.get(_FROM, {}), value.get(_LOST, 0)
    topics = _selection(value[_TOPICS]) if _TOPICS in value else None
    pairs = [(_selection(one), offsets) for one, offsets in value.get(_BEFORE, [])]
    before = tuple((one, offsets) for one, offsets in pairs if one is not None and _are_offsets(offsets))
    if (
        not (_are_offsets(following) and _are_offsets(began) and type(lost) is int and lost >= 0)
        or (topics is None and _TOPICS in value)
        or len(before) < len(pairs)
    ):
        raise ConfigError(f"the checkpoint holds {dict(value)!r}, no offsets of a bridge: is it another query's?")
    return Offsets(
        next=cast("dict[str, int]", following),
        initial=value.get(_INITIAL) is True,
        began=cast("dict[str, int]", began),
        lost=lost,
        topics=topics,
        before=before,
    )


def _are_offsets(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    offsets = cast("dict[object, object]", value)
    return all(
        isinstance(shard, str) and "@" in shard and type(offset) is int and offset >= 0
        for shard, offset in offsets.items()
    )


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Events ``start`` up to but not including ``end`` of one shard."""

    shard: str
    start: int
    end: int


def number_of(shard: str) -> int:
    """Return the number in a shard's id."""
    return int(shard.partition("@")[0])


def place(position: Position, extents: Mapping[str, Extent], *, option: str, end: bool = False) -> dict[str, int]:
    """Turn a position that a user has given into offsets.

    Shards that the user does not name begin at their earliest event and end behind their latest one.

    Args:
        position: position of the option.
        extents: extent of every shard.
        option: name of the option.
        end: True if reading ends there; False if it begins there.

    Raises:
        ConfigError: it names a shard that is not there, or an offset outside of it.
    """
    if position == "earliest":
        return {shard: extent.earliest for shard, extent in extents.items()}
    if position == "latest":
        return {shard: extent.next for shard, extent in extents.items()}
    by_number = {str(number_of(shard)): shard for shard in extents}
    placed = {shard: extent.next if end else extent.earliest for shard, extent in extents.items()}
    for name, wanted in position.items():
        shard = by_number.get(name, name)
        extent = extents.get(shard)
        if extent is None:
            raise ConfigError(f"option {option} names the shard {name}: the bridge has {', '.join(extents)}")
        offset = {EARLIEST: extent.earliest, LATEST: extent.next}.get(wanted, wanted)
        if not extent.earliest <= offset <= extent.next:
            raise ConfigError(
                f"option {option} says {offset} for shard {name}, which holds {extent.earliest} to {extent.next}"
            )
        placed[shard] = offset
    return placed


def check_order(start: Mapping[str, int], end: Mapping[str, int], *, options: str) -> None:
    """Raise ConfigError if a read ends before it begins in a shard."""
    for shard, offset in start.items():
        if shard in end and end[shard] < offset:
            raise ConfigError(
                f"{options} contradict each other: shard {shard} would end at {end[shard]}, before {offset}"
            )


def advance(start: Offsets, extents: Mapping[str, Extent], *, fail_on_data_loss: bool) -> Offsets:
    """Return the end of the batch that begins at ``start``, as far as ``extents`` let it go.

    Shards in which nothing is to be read go along with the others.  Returns ``start`` itself if that is so in all of
    them and the batch need not go back.

    Raises:
        DataLost: a log was wiped, or events that were not read yet were trimmed, and that is to be an error.
    """
    begins: dict[str, int] = {}
    began: dict[str, int] = dict(start.next) if start.initial else {}
    epochs = {number_of(shard): shard for shard in extents}
    for shard, offset in start.next.items():
        other = epochs.get(number_of(shard), shard)
        if other != shard:
            if fail_on_data_loss:
                raise DataLost(
                    f"shard {shard} was wiped: shard {other} has taken its place.  Begin with a new checkpoint, or set "
                    "failOnDataLoss to false to go on with what is there"
                )
            continue
        begins[shard] = offset
        extent = extents.get(shard)
        if extent is not None and offset < extent.earliest:
            if fail_on_data_loss:
                raise DataLost(
                    f"events {offset} to {extent.earliest} of shard {shard} were trimmed before they were read.  Keep "
                    "them for longer, or set failOnDataLoss to false to go on without them"
                )
            begins[shard] = began[shard] = extent.earliest
        elif extent is not None and offset > extent.next:
            # Its next events would get offsets that were read before, and be passed over.
            if fail_on_data_loss:
                raise DataLost(
                    f"shard {shard} ends at {extent.next}, and was read up to {offset}: the log was put back to an "
                    "older state.  Begin with a new checkpoint, or set failOnDataLoss to false to go on at its end"
                )
            begins[shard] = began[shard] = extent.next
    for shard, extent in extents.items():
        if shard not in begins:
            begins[shard] = began[shard] = extent.earliest
    ends = {shard: _end(extents.get(shard), offset) for shard, offset in begins.items()}
    waiting = any(
        extents[shard].has_news and ends[shard] > offset for shard, offset in begins.items() if shard in extents
    )
    behind = any(began[shard] < offset for shard, offset in start.next.items() if shard in began)
    if not waiting and not behind:
        return start
    return Offsets(next=ends, began=began, lost=start.lost, topics=start.topics, before=start.before)


def _end(extent: Extent | None, offset: int) -> int:
    if extent is None:
        return offset
    return max(offset, extent.next if extent.upto is None else min(extent.upto, extent.next))


def divide(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide ``limit`` in proportion; the shares are whole and add up to it, or to all if that is less.

    Args:
        waiting: number of events to be read, by shard.
        limit: most events to read.
    """
    total = sum(waiting.values())
    if total <= limit:
        return dict(waiting)
    shares = {shard: size * limit // total for shard, size in waiting.items()}
    left = limit - sum(shares.values())
    for shard in sorted(waiting, key=lambda shard: waiting[shard] * limit % total, reverse=True)[:left]:
        shares[shard] += 1
    return shares


def with_beginnings(start: Offsets, end: Offsets) -> Offsets:
    """Return the end of a batch with where all that it reads began."""
    began = {shard: end.began.get(shard, start.next.get(shard, 0)) for shard in end.next}
    return dataclasses.replace(end, began={shard: at for shard, at in began.items() if at < end.next[shard]})


def ranges_before(end: Offsets) -> list[Range]:
    """Return the ranges of the batch that ended here, as far as it says where they began."""
    began = {shard: at for shard, at in end.began.items() if at < end.next.get(shard, 0)}
    return [Range(shard=shard, start=at, end=end.next[shard]) for shard, at in began.items()]


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """Return the ranges of a batch, by number of shard."""
    ranges: list[Range] = []
    if start == end:
        return ranges  # its ``began`` is about the batch before
    for shard, offset in sorted(end.next.items(), key=lambda item: number_of(item[0])):
        begin = end.began.get(shard, start.next.get(shard, 0))
        if begin < offset:
            ranges.append(Range(shard=shard, start=begin, end=offset))
    return ranges


def cut_ranges(ranges: Sequence[Range], marks: Sequence[Mapping[str, int]]) -> list[Range]:
    """Return ranges none of which holds one of these offsets of its shard between its first event and its last."""
    pieces: list[Range] = []
    for found in ranges:
        inner = {offsets.get(found.shard, 0) for offsets in marks}
        cuts = [found.start, *sorted(at for at in inner if found.start < at < found.end), found.end]
        pieces += [Range(shard=found.shard, start=begin, end=end) for begin, end in itertools.pairwise(cuts)]
    return pieces


def split_ranges(ranges: Sequence[Range], partitions: int | None, most: int | None = None) -> list[Range]:
    """Cut ranges into pieces for tasks.

    Args:
        ranges: ranges of a batch.
        partitions: about so many pieces there are, the larger ranges in more of them; None: one of each range.
        most: no piece is of more offsets than that; None: of any number.
    """
    total = sum(found.end - found.start for found in ranges)
    spread = partitions is not None and len(ranges) < partitions
    pieces: list[Range] = []
    for found in ranges:
        size = found.end - found.start
        count = max(1, round(size * partitions / total)) if partitions is not None and spread else 1
        count = min(size, max(count, 1 if most is None else -(-size // most)))
        cuts = [found.start + size * cut // count for cut in range(count + 1)]
        pieces += [Range(shard=found.shard, start=begin, end=end) for begin, end in itertools.pairwise(cuts)]
    return pieces
