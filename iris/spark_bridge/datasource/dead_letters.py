"""Dead letters: payloads that do not fit the schema, published on a topic of the bridge (option ``badTopic``).

Each range that a task reads has its dead letters committed in one step when it was read to its end, as a batch of the
sink is (``iris.spark_bridge.datasource.sink``).  The commit is named after the query, what determines its ranges and
rows, and the place of the range; its number is that of the micro-batch.  So a range that Spark reads again, in another
attempt of the task, a second action on the same micro-batch or after a crash, adds nothing.

A task that is ended before the end of its range, as by ``take``, commits nothing.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, final

import pyarrow as pa
from pyspark import TaskContext

from iris.kernel.errors import ConfigError
from iris.spark_bridge.client import portal_to
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.sink import FEW_BYTES, DriverRows, Staged, commit_parts, stage_part
from iris.spark_bridge.errors import StaleBatch
from iris.spark_bridge.events.schema import HEADER_ENCODING, HEADER_SENDER, SINK_SCHEMA
from iris.spark_bridge.staging import StagedPart, cut_rows, new_part

_log: Final = logging.getLogger("iris")

_IN_MEMORY: Final = 4 * 1024 * 1024
"""Bytes of dead letters that are kept in memory; more go through a temporary file."""

_COPIED: Final = {HEADER_SENDER: "bad-sender", HEADER_ENCODING: "bad-encoding"}
"""What the bridge has written on the event; names of its own are reserved."""


@final
class DeadLetters:
    """The dead letters of one range.  Get one from ``dead_letters``.

    Args:
        file: takes them until the end.
        topic: where they go.
    """

    def __init__(self, file: Any, topic: str) -> None:
        self._stream = pa.ipc.new_stream(file, SINK_SCHEMA)
        self._topic = topic
        self.count = 0
        self.first = ""
        """Which was the first one, and why."""

    def take(self, batch: pa.RecordBatch, unfit: Mapping[int, str]) -> None:
        """Take events of a batch of the log, by row with the reason.  Those of the topic itself are not sent again."""
        rows: list[dict[str, object]] = []
        for at, reason in unfit.items():
            event = batch.slice(at, 1).to_pylist()[0]
            if event["topic"] == self._topic:
                continue
            if not self.count and not rows:
                self.first = f"offset {event['offset']} of shard {event['partition']}: {reason}"
            headers = {f"bad-{name}": str(event[name]).encode() for name in ("topic", "partition", "offset")}
            headers["bad-reason"] = reason.encode()
            headers |= {_COPIED[pair["key"]]: pair["value"] for pair in event["headers"] if pair["key"] in _COPIED}
            fields = {"topic": self._topic, "headers": [*headers.items()]}
            rows.append({"key": event["key"], "value": event["value"], **fields})
        if rows:
            self.count += len(rows)
            for part in cut_rows(pa.RecordBatch.from_pylist(rows, schema=SINK_SCHEMA)):
                self._stream.write_batch(part)

    def end(self) -> None:
        """Take no more."""
        self._stream.close()


@contextmanager
def dead_letters(options: SourceOptions, *, shard: str, slot: int) -> Iterator[DeadLetters]:
    """Take the dead letters of a range; when the block is left without an error they are committed.

    Args:
        options: of the query.
        shard: id of the shard.
        slot: number of the range among those of the shard in the micro-batch.

    Raises:
        ConfigError: this is no task of a stream, or the bridge's members are not counted.
        NotAllowed: the credential may not publish on the topic.
        Errors of ``BridgeClient.commit``.
    """
    assert options.bad_topic is not None
    query, number = _place(options, shard, slot)
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
        letters = DeadLetters(file, options.bad_topic)
        yield letters
        letters.end()
        if not letters.count:
            return
        part = new_part(query=query, batch=number, partition=0)
        committed = _commit(options, part, file)
        _log.warning(
            "%d events do not fit the schema and are on topic %s%s; %s",
            letters.count,
            options.bad_topic,
            "" if committed else " from an earlier attempt",
            letters.first,
            extra={"count": letters.count, "topic": options.bad_topic, "shard": shard, "query": query, "batch": number},
        )


def _commit(options: SourceOptions, part: StagedPart, file: Any) -> bool:
    """Let the rows become part of the log; False if they are already."""
    portal = portal_to(options.connection)
    small = file.tell() <= FEW_BYTES
    file.seek(0)
    try:
        if small:
            rows = [DriverRows(part, file.read())]
            return portal.call(partial(commit_parts, staged=[], carried=rows)) is not None
        address = portal.call(partial(stage_part, part=part, file=file))
        return portal.call(partial(commit_parts, staged=[Staged(address, part)], carried=[])) is not None
    except StaleBatch:
        return False  # a task that has outlived its micro-batch: another attempt has committed this one


def _place(options: SourceOptions, shard: str, slot: int) -> tuple[str, int]:
    """Return under which name, and as which batch, the dead letters of a range are committed."""
    task = TaskContext.get()
    query = None if task is None else task.getLocalProperty("sql.streaming.queryId")
    batch = None if task is None else task.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None or options.typed is None:
        raise ConfigError("option badTopic is for the tasks of a stream, and this is none: leave it out")
    # A repeated micro-batch that is divided or read in another way is another one: its dead letters may come twice, and
    # none is taken for one that is there already.
    typed = options.typed
    decisive = (query, shard, options.min_partitions, options.bad_topic, typed.schema.to_string(), typed.formats)
    digest = hashlib.sha256(repr(decisive).encode()).hexdigest()[:24]
    return f"bad-{digest}-{slot}", int(batch)
