"""Parts that Spark's tasks leave at a bridge until the driver commits them."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from iris.kernel.config import MIB
from iris.kernel.errors import RemoteError
from iris.security.files.private_files import make_directories
from iris.spark_bridge.errors import LogDamaged, QuotaExceeded
from iris.spark_bridge.events.schema import MAX_VALUE, SINK_SCHEMA
from iris.spark_bridge.log.chunk_io import CHUNK_BYTES, CHUNK_EVENTS
from iris.spark_bridge.staging.staging import StagedPart, Staging, new_part
from iris.spark_bridge.staging.usage import LEAST, Usage
from tests.support.staged import part, rows, written


def unlimited() -> Usage:
    return Usage(most=sys.maxsize, most_of_owner=sys.maxsize)


def write(staging: Staging, data: bytes) -> None:
    with staging.write(part(0), "a") as write:
        write(data)


def values(staging: Staging) -> list[bytes]:
    return [value for batch in staging.rows([part(0)], {}) for value in batch.column("value").to_pylist()]


def test_a_part_is_there_when_it_is_whole(tmp_path: Path) -> None:
    staging = Staging(tmp_path, unlimited())
    with staging.write(part(0), "a") as write:
        write(written(["a"]).getvalue())
        assert not staging.path(part(0)).exists()
    assert values(staging) == [b"a"]


def test_a_part_that_is_sent_again_before_the_first_try_has_ended_is_whole(tmp_path: Path) -> None:
    staging = Staging(tmp_path, unlimited())
    data = written(["a", "b"]).getvalue()
    with ExitStack() as first, ExitStack() as second:
        write_first = first.enter_context(staging.write(part(0), "a"))
        write_first(data[:100])
        write_second = second.enter_context(staging.write(part(0), "a"))
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
    staging = Staging(tmp_path, unlimited())
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
    staging = Staging(tmp_path, unlimited())
    write(staging, sink.getvalue().to_pybytes())
    with pytest.raises(LogDamaged, match="out of bounds"):
        values(staging)


def test_columns_of_another_form_are_refused(tmp_path: Path) -> None:
    staging = Staging(tmp_path, unlimited())
    schema = pa.schema([SINK_SCHEMA.field("value")])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_pylist([{"value": b"x"}], schema=schema))
    write(staging, sink.getvalue().to_pybytes())
    with pytest.raises(Exception, match="holds other columns: value"):
        values(staging)


# -- how much --------------------------------------------------------------------------------------------------


def stage(staging: Staging, size: int, owner: str, query: str = "q", batch: int = 0, partition: int = 0) -> None:
    staged = StagedPart(query=query, batch=batch, partition=partition, attempt=0)
    with staging.write(staged, owner) as write:
        for _ in range(0, size, 1024):
            write(bytes(1024))


def test_a_cluster_stages_so_much_and_all_stage_so_much(tmp_path: Path) -> None:
    usage = Usage(most=5 * MIB, most_of_owner=3 * MIB)
    staging = Staging(tmp_path, usage)
    stage(staging, 2 * MIB, "a")
    with pytest.raises(QuotaExceeded, match=r"cluster 'a' may have 3 MiB staged at this member, .* --staged-mib"):
        stage(staging, 2 * MIB, "a", batch=1)
    assert usage.total == 2 * MIB + 4, "with its checksum, and of the other one nothing"
    stage(staging, 2 * MIB, "b", query="r")
    with pytest.raises(QuotaExceeded, match="all clusters together may have 5 MiB"):
        stage(staging, 2 * MIB, "c", query="s")
    staging.discard("q", 0)
    stage(staging, 2 * MIB, "c", query="s")
    staging.discard_older(2**40)
    assert usage.total == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_part_of_a_batch_that_is_given_up_while_it_is_written_is_refused_and_counts_nothing(tmp_path: Path) -> None:
    usage = unlimited()
    staging = Staging(tmp_path, usage)
    writing = staging.write(part(0), "a")
    writing.__enter__()(b"x")
    staging.discard("q", 0)
    with pytest.raises(RemoteError, match="batch 0 of query 'q' was committed or given up meanwhile"):
        writing.__exit__(None, None, None)
    assert usage.total == 0
    assert list(tmp_path.iterdir()) == []


def test_a_batch_is_given_up_between_two_steps_of_who_writes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = unlimited()
    staging = Staging(tmp_path, usage)
    (tmp_path / "q").mkdir()
    others: list[threading.Thread] = []

    def disturbed(path: Path) -> None:
        make_directories(path.parent)
        others.append(threading.Thread(target=staging.discard, args=("q", 0)))
        others[-1].start()
        others[-1].join(0.2)  # without a lock it has ended by then
        path.mkdir(mode=0o700)

    monkeypatch.setattr("iris.spark_bridge.staging.staging.make_directories", disturbed)
    stage(staging, 0, "a", batch=1)
    others[0].join()
    assert staging.path(StagedPart(query="q", batch=1, partition=0, attempt=0)).exists()


def test_a_small_part_counts_as_a_file_at_least(tmp_path: Path) -> None:
    usage = Usage(most=sys.maxsize, most_of_owner=10 * LEAST)
    staging = Staging(tmp_path, usage)
    for partition in range(10):
        stage(staging, 0, "a", partition=partition)
    with pytest.raises(QuotaExceeded):
        stage(staging, 0, "a", partition=10)
    assert usage.total == 10 * LEAST


def test_what_was_staged_before_a_restart_counts_and_what_was_not_finished_goes(tmp_path: Path) -> None:
    stage(Staging(tmp_path, unlimited()), 2 * MIB, "a")
    stage(Staging(tmp_path, unlimited()), 0, "b", query="r")
    (tmp_path / "q" / "0" / "1-1-0.writing").write_bytes(bytes(MIB))
    usage = Usage(most=sys.maxsize, most_of_owner=3 * MIB)
    staging = Staging(tmp_path, usage)
    staging.look({"q": "a"}.get)
    assert usage.total == 2 * MIB + 4 + LEAST
    assert not list(tmp_path.rglob("*.writing"))
    with pytest.raises(QuotaExceeded, match="cluster 'a'"):
        stage(staging, 2 * MIB, "a", query="s")
    staging.discard("q", 0)
    stage(staging, 2 * MIB, "a", query="s")
