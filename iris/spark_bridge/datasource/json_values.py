"""msgpack as JSON, and back: Spark reads the one, programs of Iris give and take the other.

The source yields JSON where the log has msgpack that has such a form; the header ``iris-encoding`` says ``json`` then.
The sink packs it again, so that what a query passes on is the value that was published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc

from iris.spark_bridge.events.json_payloads import JSON, pack_value, unpack_value
from iris.spark_bridge.events.schema import HEADER_ENCODING, PACKED, SCHEMA

_HEADERS: Final = cast("pa.ListType", SCHEMA.field("headers").type)
Recode = Callable[[bytes], tuple[bytes, str]]


def unpack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return events of the log with JSON in the place of msgpack; what has no such form stays as it is."""
    return _recode(batch, PACKED, unpack_value)


def pack(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows for the log with msgpack in the place of what ``unpack`` has made JSON of."""
    return _recode(rows, JSON, pack_value)


def _recode(batch: pa.RecordBatch, encoding: str, recode: Recode) -> pa.RecordBatch:
    """Return a batch with other values and encodings where the headers name an encoding."""
    headers = batch.column("headers")
    assert isinstance(headers, pa.ListArray)
    pairs = headers.flatten()
    assert isinstance(pairs, pa.StructArray)
    names, texts = pairs.field("key"), pairs.field("value")
    marked = pc.fill_null(pc.and_(pc.equal(names, HEADER_ENCODING), pc.equal(texts, encoding.encode())), False)
    rows: list[int] = pc.list_parent_indices(headers).filter(marked).to_pylist()
    if not rows:
        return batch
    given: list[bytes | None] = batch.column("value").take(pa.array(rows)).to_pylist()
    made: dict[int, tuple[bytes | None, str]] = {
        row: (None, encoding) if value is None else recode(value) for row, value in zip(rows, given, strict=True)
    }
    own = pa.array([row in made for row in range(batch.num_rows)])
    values = pc.replace_with_mask(
        batch.column("value"), own, pa.array([made[row][0] for row in sorted(made)], pa.binary())
    )
    texts = pc.replace_with_mask(texts, marked, pa.array([made[row][1].encode() for row in rows], pa.binary()))
    lengths = pc.fill_null(pc.list_value_length(headers), 0)
    ends = pc.cumulative_sum(pa.concat_arrays([pa.array([0], pa.int32()), lengths.cast(pa.int32())]))
    fields = list(cast("pa.StructType", _HEADERS.value_type))
    made_pairs = pa.StructArray.from_arrays([names, texts], fields=fields, mask=pairs.is_null())
    lists = pa.ListArray.from_arrays(ends, made_pairs, type=_HEADERS, mask=headers.is_null())
    columns: Mapping[str, pa.Array[object]] = {"value": values, "headers": lists}
    return pa.RecordBatch.from_arrays(
        [columns.get(name, batch.column(name)) for name in batch.schema.names], schema=batch.schema
    )
