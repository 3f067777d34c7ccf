"""Options of ``format("iris")``: parsed and validated in one place; an error names the option.

They are those of Spark's Kafka source where it has them.  An unknown option is an error: a misspelt option that is
silently ignored is found weeks later.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Final, Literal, cast, final

from iris.kernel.errors import ConfigError
from iris.kernel.names import check_name
from iris.kernel.numerals import read_float, read_whole
from iris.kernel.shapes import are_numbers, is_list, is_map
from iris.patterns.pubsub.interest import check_pattern, check_topic
from iris.spark_bridge.client import EARLIEST, LATEST, Connection, Position, TopicSelection, Where
from iris.spark_bridge.log import JOB_PREFIX, QUERY

_LAST_TIME: Final = 253_402_300_799_999
"""The end of the year 9999."""

_MOST_PARTITIONS: Final = 100_000
"""Spark's driver keeps each task in memory, and plans them one after the other."""

DEFAULT_DELAY: Final = 900.0
"""Seconds; as Kafka's source."""

Strategy = Literal["error", "latest"]

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<number>[0-9]{1,9})\s*(?P<unit>ms|s|min|m|h)", re.ASCII)

_SHARD = re.compile(r"(0|[1-9][0-9]{0,9})(@[0-9a-f]{16})?\Z")


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Parsed options of the source."""

    connection: Connection = dataclasses.field(default_factory=Connection)
    topics: tuple[str, ...] = ()
    """Patterns of topics; empty: not chosen by these."""
    topic_regex: str | None = None
    passed: tuple[TopicSelection, ...] = ()
    """Topics whose events are left out of a range, because the query read them there before others were added."""
    shards: tuple[int, ...] | None = None
    """Numbers of the shards to read; None: all."""
    starting: Position = "earliest"
    starting_timestamp: int | None = None
    """Milliseconds since 1970; takes the place of ``starting``."""
    starting_timestamps: Mapping[int, int] | None = None
    """Start by number of shard, in milliseconds since 1970; other shards are read from their earliest event."""
    ending: Position = "latest"
    ending_timestamp: int | None = None
    ending_timestamps: Mapping[int, int] | None = None
    """End by number of shard, in milliseconds since 1970; other shards are read to their latest event."""
    timestamp_strategy: Strategy = "latest"
    """Treatment of a shard that has no event as young as the time at which reading begins."""
    group: str | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    """Events for which a micro-batch waits, but no longer than ``max_delay``."""
    max_delay: float = DEFAULT_DELAY
    min_partitions: int | None = None
    max_rows_per_partition: int | None = None
    """Largest range that one task reads, in offsets. None: no limit."""
    inline_rows: int = 0
    """Events of the largest micro-batch of a query that needs no workers, see ``inline_source``; 0: it has workers."""
    fail_on_data_loss: bool = True
    include_headers: bool = True
    include_shard: bool = False
    local_files: bool = True
    """True if segments on the reader's machine are read as files; see ``iris.spark_bridge.log.local_read``."""


_NAMES: Final = (
    "bridge",
    "credential",
    "seeds",
    "bridgeTimeout",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "group",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "inlineRows",
    "failOnDataLoss",
    "includeHeaders",
    "includeShard",
    "localFiles",
)

_OF_KAFKA: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "give seeds and credential, or neither on the bridge's own machine",
    "kafka.group.id": "each query reads all events; group names one whose progress the bridge is to tell",
    "groupidprefix": "each query reads all events; group names one whose progress the bridge is to tell",
    "fetchoffset.numretries": "bridgeTimeout says how long a bridge that is down is waited for",
    "fetchoffset.retryintervalms": "bridgeTimeout says how long a bridge that is down is waited for",
    "kafkaconsumer.polltimeoutms": "bridgeTimeout says how long a bridge that is down is waited for",
}
"""Options of Spark's Kafka source, in lower case, and what to do here instead."""

_OF_PARSE: Final = (
    "mode",
    "columnNameOfCorruptRecord",
    "badTopic",
    "timestampFormat",
    "timestampNTZFormat",
    "dateFormat",
    "timeZone",
    "payloadFormat",
    "payloadSchema",
    "payloadMessage",
    "schemaRegistry",
    "schemaRegistryConfig",
)
"""Options of earlier versions, which made columns of payloads in the source."""
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "group",
    "inlineRows",
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def parse_source_options(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Read the options of a source.

    Args:
        given: options from Spark; the case of the names does not matter.
        streaming: whether it is for a streaming or a batch read; None: not known yet, so what only one of them
            takes is accepted.

    Raises:
        ConfigError: an option is unknown, malformed, contradicts another one or has no place in this kind of read.
    """
    options = _Options(given, _NAMES)
    options.at_most_one("subscribe", "subscribePattern", "assign")
    options.at_most_one("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
    options.at_most_one("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if streaming is not None:
        for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
            if options.has(name):
                kind = "a batch read (spark.read)" if streaming else "a stream (spark.readStream)"
                raise ConfigError(f"option {name} is for {kind} only: leave it out")
    starting = options.position("startingOffsets", "earliest")
    if streaming is False and (starting == "latest" or LATEST in _values(starting)):
        raise ConfigError("option startingOffsets is latest, and a batch read of nothing has no use: use earliest")
    ending = options.position("endingOffsets", "latest")
    if ending == "earliest" or EARLIEST in _values(ending):
        raise ConfigError("option endingOffsets is earliest, and a read of nothing has no use: use latest or offsets")
    begin, end = options.timestamp("startingTimestamp"), options.timestamp("endingTimestamp")
    if begin is not None and end is not None and end < begin:
        raise ConfigError(
            "options startingTimestamp and endingTimestamp contradict each other: it ends before it begins"
        )
    begins, ends = options.timestamps("startingOffsetsByTimestamp"), options.timestamps("endingOffsetsByTimestamp")
    shards = options.shards("assign")
    for name, named in (
        ("startingOffsets", _shards_of(starting)),
        ("endingOffsets", _shards_of(ending)),
        ("startingOffsetsByTimestamp", [*(begins or ())]),
        ("endingOffsetsByTimestamp", [*(ends or ())]),
    ):
        others = set(named).difference(shards or named)
        if others:
            raise ConfigError(f"options assign and {name} contradict each other: shard {min(others)} is not assigned")
    if options.has("startingOffsetsByTimestampStrategy") and begin is None and begins is None:
        raise ConfigError(
            "option startingOffsetsByTimestampStrategy is about timestamps: give startingTimestamp or "
            "startingOffsetsByTimestamp as well"
        )
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("ERROR", "LATEST"), default="LATEST")
    least, most = options.number("minOffsetsPerTrigger", least=1), options.number("maxOffsetsPerTrigger", least=1)
    if least is not None and most is not None and least > most:
        raise ConfigError("options minOffsetsPerTrigger and maxOffsetsPerTrigger contradict each other: least is more")
    if options.has("maxTriggerDelay") and least is None:
        raise ConfigError("option maxTriggerDelay is how long minOffsetsPerTrigger may wait: give that as well")
    inline_rows = options.number("inlineRows", least=0) or 0
    return SourceOptions(
        connection=_connection(options),
        topics=options.topics("subscribe"),
        topic_regex=options.regex("subscribePattern"),
        shards=shards,
        starting=starting,
        starting_timestamp=begin,
        starting_timestamps=begins,
        ending=ending,
        ending_timestamp=end,
        ending_timestamps=ends,
        timestamp_strategy=cast("Strategy", strategy.lower()),
        group=options.name("group"),
        max_offsets=most,
        min_offsets=least,
        max_delay=options.duration("maxTriggerDelay", DEFAULT_DELAY),
        min_partitions=options.number("minPartitions", least=1, most=_MOST_PARTITIONS),
        max_rows_per_partition=options.number("maxRecordsPerPartition", least=1),
        inline_rows=inline_rows,
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        include_headers=options.flag("includeHeaders", default=True),
        include_shard=options.flag("includeShard", default=False),
        local_files=options.flag("localFiles", default=True),
    )


def check_shards(options: SourceOptions, present: Collection[int]) -> None:
    """Make sure that the shards which the options name are there: of one that is not, nothing would ever come.

    Raises:
        ConfigError: one is not; the message names the option.
    """
    named = {
        "assign": options.shards or (),
        "startingOffsets": _shards_of(options.starting),
        "endingOffsets": _shards_of(options.ending),
        "startingOffsetsByTimestamp": options.starting_timestamps or (),
        "endingOffsetsByTimestamp": options.ending_timestamps or (),
    }
    for name, numbers in named.items():
        missing = sorted(set(numbers).difference(present))
        if missing:
            there = ", ".join(map(str, sorted(present))) or "none"
            raise ConfigError(
                f"option {name} names the shard {missing[0]}, which the bridge {options.connection.bridge!r} does not "
                f"have: use one of {there}"
            )


def _shards_of(position: str | Mapping[str, int]) -> list[int]:
    return [] if isinstance(position, str) else [int(shard.partition("@")[0]) for shard in position]


def _connection(options: _Options, *, member: bool = False) -> Connection:
    bridge = options.text("bridge") or "bridge"
    seeds = tuple(seed.strip() for seed in (options.text("seeds") or "").split(",") if seed.strip())
    timeout = options.seconds("bridgeTimeout")
    try:
        check_name(bridge, "cluster")
    except ConfigError as error:
        raise ConfigError(f"option bridge: {error}") from None
    return Connection(
        bridge=bridge,
        credential=options.text("credential"),
        seeds=seeds,
        timeout=60.0 if timeout is None else timeout,
        member=member,
    )


def _values(position: Position) -> tuple[int, ...]:
    return () if isinstance(position, str) else tuple(position.values())


@final
class _Options:
    """Options by name, and how each kind of value is read."""

    def __init__(self, given: Mapping[str, str], names: tuple[str, ...]) -> None:
        self._given: dict[str, str] = {}
        known = {name.lower(): name for name in names}
        for key, value in given.items():
            name = known.get(key.lower())
            if name is None:
                if key.lower() in _OF_KAFKA or key.lower().startswith("kafka."):
                    instead = _OF_KAFKA.get(key.lower(), "leave it out")
                    raise ConfigError(f"format iris has no option {key}, which is about Kafka: {instead}")
                former = [name for name in _OF_PARSE if name.lower() == key.lower()]
                if former:
                    raise ConfigError(
                        f"format iris has no option {former[0]} any more: iris.spark_bridge.parse makes columns of "
                        "payloads, and iris.spark_bridge.dead_letters keeps what does not fit"
                    )
                close = difflib.get_close_matches(key.lower(), known, n=1)
                hint = f"did you mean {known[close[0]]}?" if close else f"use {', '.join(names)}"
                raise ConfigError(f"format iris has no option {key}: {hint}")
            self._given[name] = value

    def has(self, name: str) -> bool:
        return name in self._given

    def at_most_one(self, *names: str) -> None:
        found = [name for name in names if name in self._given]
        if len(found) > 1:
            raise ConfigError(f"options {' and '.join(found)} contradict each other: give one of them")

    def text(self, name: str) -> str | None:
        value = self._given.get(name)
        if value is not None and not value.strip():
            raise ConfigError(f"option {name} is empty: give a value or leave it out")
        return value

    def number(self, name: str, *, least: int, most: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        number = read_whole(value.strip(), least, most)
        if number is None:
            upto = "or more" if most == 2**63 - 1 else f"to {most}"
            raise ConfigError(f"option {name} is {value!r}: use a whole number, {least} {upto}")
        return number

    def timestamp(self, name: str) -> int | None:
        value = self.number(name, least=0)
        if value is not None and value > _LAST_TIME:
            raise ConfigError(f"option {name} is {value}: use milliseconds since 1970, at most {_LAST_TIME}")
        return value

    def seconds(self, name: str) -> float | None:
        value = self.text(name)
        if value is None:
            return None
        found = _DURATION.fullmatch(value.strip().lower())
        seconds = read_float(value.strip()) if found is None else int(found["number"]) * _UNITS[found["unit"]]
        if not 0 < seconds < 1e9:
            raise ConfigError(f"option {name} is {value!r}: use seconds above 0, such as 5 or 5s")
        return seconds

    def duration(self, name: str, default: float) -> float:
        """Return seconds, of a number of seconds or of a text such as ``15m``."""
        value = self.text(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value.strip().lower())
        if found is None:
            raise ConfigError(
                f"option {name} is {value!r}: use a whole number with a unit, such as 500ms, 30s, 15m or 1h"
            )
        return int(found["number"]) * _UNITS[found["unit"]]

    def timestamps(self, name: str) -> dict[int, int] | None:
        """Return milliseconds since 1970 by number of shard."""
        value = self.text(name)
        if value is None:
            return None
        wanted = 'milliseconds since 1970 by shard, such as {"0": 1735689600000}'
        parsed = _json(name, value, wanted)
        found = parsed if is_map(parsed) else {}
        good = all(
            read_whole(shard, 0, 2**31 - 1) is not None and type(time) is int and 0 <= time <= _LAST_TIME
            for shard, time in found.items()
        )
        if not found or not good:
            raise ConfigError(f"option {name} is {value!r}: use {wanted}")
        return {int(shard): cast("int", time) for shard, time in found.items()}

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"option {name} is {value!r}: use true or false")
        return value.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...], *, default: str) -> str:
        value = self.text(name) or default
        if value.upper() not in choices:
            raise ConfigError(f"option {name} is {value!r}: use {', '.join(choices[:-1])} or {choices[-1]}")
        return value.upper()

    def topics(self, name: str) -> tuple[str, ...]:
        value = self.text(name)
        if value is None:
            return ()
        try:
            return tuple(check_pattern(topic.strip()) for topic in value.split(","))
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None

    def topic(self, name: str) -> str | None:
        value = self.text(name)
        try:
            return None if value is None else check_topic(value)
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None

    def regex(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ConfigError(f"option {name} is {value!r}, no regular expression: {error}") from None
        return value

    def name(self, name: str) -> str | None:
        value = self.text(name)
        try:
            return None if value is None else check_name(value, name)
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None

    def query(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and (not QUERY.match(value) or value.startswith(JOB_PREFIX)):
            raise ConfigError(
                f"option {name} is {value!r}: use 1 to 64 letters, digits, '-' and '_', not beginning with {JOB_PREFIX}"
            )
        return value

    def shards(self, name: str) -> tuple[int, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        parsed = _json(name, value, "a list of shard numbers, such as [0, 3]")
        numbers = tuple(parsed) if is_list(parsed) else ()
        if not numbers or not are_numbers(numbers) or not all(0 <= number < 2**31 for number in numbers):
            raise ConfigError(f"option {name} is {value!r}: use a list of shard numbers, such as [0, 3]")
        return tuple(sorted(set(numbers)))

    def position(self, name: str, default: Where) -> Position:
        value = self.text(name)
        if value is None:
            return default
        wanted = 'earliest, latest, or offsets by shard such as {"0": 120, "1": -2}'
        if value.strip().lower() in ("earliest", "latest"):
            return cast("Where", value.strip().lower())
        parsed = _json(name, value, wanted)
        offsets = parsed if is_map(parsed) else {}
        good = all(
            _SHARD.match(shard) and type(offset) is int and EARLIEST <= offset < 2**63
            for shard, offset in offsets.items()
        )
        numbers = {shard.partition("@")[0] for shard in offsets}
        if not offsets or not good or len(numbers) < len(offsets):
            raise ConfigError(f"option {name} is {value!r}: use {wanted}")
        return cast("dict[str, int]", offsets)


def _json(name: str, value: str, wanted: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        raise ConfigError(f"option {name} is {value!r}: use {wanted}") from None


# -- the sink ------------------------------------------------------------------------------------------------

Delivery = Literal["exactly-once", "at-least-once"]

_DELIVERIES: Final[Mapping[str, Delivery]] = {"exactly-once": "exactly-once", "at-least-once": "at-least-once"}

_SPARKS_OWN: Final = ("checkpointLocation", "queryName", "path")
"""Spark hands these to every sink."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Parsed options of the sink."""

    connection: Connection = dataclasses.field(default_factory=Connection)
    topic: str | None = None
    """Topic of every row; None: each row has its own."""
    delivery: Delivery = "exactly-once"
    query: str | None = None
    """Identity of a batch write, with ``batch``: the same pair is stored once. None: each write is a new one."""
    batch: int | None = None


def parse_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Read the options of a sink.

    Raises:
        ConfigError: an option is unknown, malformed, or has no place in this kind of write.
    """
    names = ("bridge", "credential", "seeds", "bridgeTimeout", "topic", "delivery", "query", "batch")
    options = _Options(given, (*names, *_SPARKS_OWN))
    if options.has("path"):
        raise ConfigError("format iris has no path: call start() or save() without one, and give the option topic")
    topic = options.topic("topic")
    named = options.text("delivery") or "exactly-once"
    delivery = _DELIVERIES.get(named)
    if delivery is None:
        raise ConfigError(f"option delivery is {named!r}: use {' or '.join(_DELIVERIES)}")
    if options.has("query") != options.has("batch"):
        raise ConfigError("options query and batch name a batch together: give both or none")
    if streaming and options.has("query"):
        raise ConfigError("option query is for a batch write (df.write): a stream has an id of its own")
    return SinkOptions(
        connection=_connection(options, member=delivery == "at-least-once"),
        topic=topic,
        delivery=delivery,
        query=options.query("query"),
        batch=options.number("batch", least=0),
    )
