"""Events of a bridge's log as Arrow: for pandas, DuckDB, Polars, and all else that reads Arrow.

::

    with iris.sync.open_node("analyst") as node, node.bridge().consume("orders.>", until="now") as log:
        batches = pyarrow.RecordBatchReader.from_batches(iris.arrow.SCHEMA, map(iris.arrow.to_arrow, log))
        frame = batches.read_pandas()

It needs pyarrow, which Iris does not bring along with its core: ``pip install 'iris-mesh[bridge]'``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    error.add_note("iris.arrow needs pyarrow: pip install 'iris-mesh[bridge]'")
    raise

from iris.patterns.pubsub.queues import LogEvent

__all__ = ("SCHEMA", "to_arrow")

SCHEMA: Final = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("sender", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("value", pa.string()),
        pa.field("value_bytes", pa.binary()),
    ]
)
"""Columns: the attributes of ``iris.LogEvent``, and in the place of ``payload`` two, of which one is null.

- ``value``: a payload that is text, or bytes that are UTF-8, as it is; any other value as JSON, in which bytes are
  base64 and numbers that JSON has not are null.
- ``value_bytes``: bytes that are no UTF-8.

Both are null where the payload is None.
"""


_TOO_DEEP: Final = "(nested too deep to be shown)"
"""Stands for a value of more levels than JSON can be written of, some 990.  Iris itself sends 500 at most."""


def to_arrow(events: Iterable[LogEvent]) -> pa.RecordBatch:
    """Return events as columns: one batch, of as many rows.

    Args:
        events: a ``LogBatch`` of ``iris``, ``iris.aio`` or ``iris.sync``, or any other events of a log.

    Returns:
        A batch with the schema ``SCHEMA``.
    """
    rows = list(events)
    values = [_value(event.payload) for event in rows]
    columns: list[list[Any]] = [
        [event.shard for event in rows],
        [event.offset for event in rows],
        [round(event.timestamp * 1e6) for event in rows],
        [event.topic for event in rows],
        [event.key for event in rows],
        [event.sender for event in rows],
        [list(event.headers.items()) for event in rows],
        [text for text, _ in values],
        [data for _, data in values],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _value(payload: object) -> tuple[str | None, bytes | None]:
    """Return the text of a payload; or its bytes, if they are none."""
    match payload:
        case None:
            return None, None
        case str():
            return payload, None
        case bytes():
            try:
                return payload.decode(), None
            except UnicodeDecodeError:
                return None, payload
        case _:
            try:
                return msgspec.json.encode(payload).decode(), None
            except RecursionError:  # another program's: it must not keep all others out of a table
                return _TOO_DEEP, None
