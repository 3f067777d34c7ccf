"""What Spark's tasks leave at a bridge until the driver commits it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from iris.spark_bridge.appending import CHUNK_BYTES, CHUNK_EVENTS
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.schema import MAX_VALUE, SINK_SCHEMA
from iris.spark_bridge.staging import Staging, new_part
from tests.support.staged import part, rows, written


def write(staging: Staging, data: bytes) -> None:
    with staging.write(part(0)) as write:
        write(data)


def values(staging: Staging) -> list[bytes]:
    return [value for batch in staging.rows([part(0)], {}) for value in batch.column("value").to_pylist()]


def test_a_part_is_there_when_it_is_whole(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    with staging.write(part(0)) as write:
        write(written(["a"]).getvalue())
        assert not staging.path(part(0)).exists()
    assert values(staging) == [b"a"]


def test_a_part_that_is_sent_again_before_the_first_try_has_ended_is_whole(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    data = written(["a", "b"]).getvalue()
    with ExitStack() as first, ExitStack() as second:
        write_first = first.enter_context(staging.write(part(0)))
        write_first(data[:100])
        write_second = second.enter_context(staging.write(part(0)))
        write_second(data[:200])
        write_first(data[100:150])  # what was still on its way when the tunnel broke
        first.__exit__(ConnectionError, ConnectionError("the tunnel broke"), None)
        write_second(data[200:])
    assert values(staging) == [b"a", b"b"]
    assert [path.name for path in staging.path(part(0)).parent.iterdir()] == ["0-0.arrow"]


def test_no_attempt_has_the_name_of_another() -> None:
    """Also of none of another application: Spark numbers them from 0 again in each."""
    attempts = {new_part(query="q", batch=1, partition=2).attempt for _ in range(100)}
    assert len(attempts) == 100


@pytest.mark.parametrize(
    "sizes",
    [
        [MAX_VALUE] * 20 + [0] * 9000,
        [0] * 9000 + [MAX_VALUE] * 20,
        [0] * (2 * CHUNK_EVENTS + 1),
        [1000] * 5000,
        [MAX_VALUE],
        [],
    ],
)
def test_rows_are_divided_into_chunks_that_can_be_read(tmp_path: Path, sizes: list[int]) -> None:
    staging = Staging(tmp_path)
    data = rows(*({"value": bytes(size), "topic": "t"} for size in sizes))
    write(staging, data.getvalue())
    batches = list(staging.rows([part(0)], {}))
    assert [len(value) for batch in batches for value in batch.column("value").to_pylist()] == sizes
    for batch in batches:
        assert 0 < batch.num_rows <= CHUNK_EVENTS
        assert batch.num_rows == 1 or batch.nbytes < CHUNK_BYTES
    assert len(batches) <= 1 + 2 * (len(sizes) // CHUNK_EVENTS) + 4 * (sum(sizes) // CHUNK_BYTES) + 40


def test_offsets_that_lead_out_of_a_column_are_refused(tmp_path: Path) -> None:
    whole = pa.ipc.open_stream(rows(*({"value": b"x", "topic": "t"} for _ in range(3))).getvalue()).read_next_batch()
    offsets = pa.py_buffer(b"".join(number.to_bytes(4, "little") for number in (0, 65_536, 2, 3)))
    bad = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"xxx")])
    columns = [bad if field.name == "value" else whole.column(field.name) for field in SINK_SCHEMA]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SINK_SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=SINK_SCHEMA))
    staging = Staging(tmp_path)
    write(staging, sink.getvalue().to_pybytes())
    with pytest.raises(LogDamaged, match="out of bounds"):
        values(staging)


def test_columns_of_another_form_are_refused(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    schema = pa.schema([SINK_SCHEMA.field("value")])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist([{"value": b"x"}], schema=schema))
    write(staging, sink.getvalue().to_pybytes())
    with pytest.raises(Exception, match="holds other columns: value"):
        values(staging)
