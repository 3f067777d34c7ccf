"""Driver rows: small parts that Spark's tasks send to the driver, combined before the commit.

Each part that is staged costs a tunnel, a file and four synchronous writes.  Each part that travels with a commit costs
a chunk of the log of its own, which readers open by itself.  Combined parts cost that once.
"""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import IO, Final

import pyarrow as pa

from iris.kernel.config import MIB
from iris.spark_bridge.events.record_batches import read_rows_untrusted
from iris.spark_bridge.events.runs import EVENT_OVERHEAD
from iris.spark_bridge.events.schema import SINK_SCHEMA
from iris.spark_bridge.log import CHUNK_EVENTS, ROOM
from iris.spark_bridge.staging import StagedPart, new_part, write_rows

_IN_MEMORY: Final = 16 * MIB
"""Size up to which rows are put together in memory, in bytes; more go through a temporary file."""


def merge_carried(carried: Mapping[StagedPart, bytes], others: Collection[StagedPart]) -> dict[StagedPart, IO[bytes]]:
    """Return the same rows in as few parts as keep their order among the others: Arrow IPC streams.

    Args:
        carried: the stream of each part, of SINK_SCHEMA.
        others: parts of the same batch that are staged already.
    """
    ordered = sorted({*carried, *others}, key=lambda part: part.partition)
    merged: dict[StagedPart, IO[bytes]] = {}
    for together, found in itertools.groupby(ordered, key=carried.__contains__):
        if together:
            run = list(found)
            first = run[0]
            if len(run) == 1:
                merged[first] = io.BytesIO(carried[first])
                continue
            part = new_part(query=first.query, batch=first.batch, partition=first.partition)
            merged[part] = _write(
                _large(batch for one in run for batch in read_rows_untrusted(io.BytesIO(carried[one]), SINK_SCHEMA))
            )
    return merged


def _large(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put batches together that fit into one chunk."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        own = batch.nbytes + EVENT_OVERHEAD * batch.num_rows
        if waiting and (rows + batch.num_rows > CHUNK_EVENTS or size + own > ROOM):
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += own
    if waiting:
        yield pa.concat_batches(waiting)


def _write(batches: Iterable[pa.RecordBatch]) -> IO[bytes]:
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 -- the caller closes it
    write_rows(file, batches)
    return file
