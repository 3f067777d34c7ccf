"""Payloads read as the columns of a schema, with more and more of them that do not fit.

::

    python -m benchmarks.bridge.bad_rows [ROWS]
"""

from __future__ import annotations

import json
import sys
import time

import msgspec
import pyarrow as pa

from iris.spark_bridge.datasource.payload_columns import typed_columns
from iris.spark_bridge.schema import HEADER_ENCODING, PACKED, SCHEMA

SHARES = (0.0, 0.0001, 0.01, 0.1, 1.0)
FIELDS = {
    "carrier": pa.string(),
    "flight": pa.int64(),
    "delay": pa.float64(),
    "origin": pa.string(),
    "at": pa.timestamp("us", tz="UTC"),
}


def make_batch(rows: int, share: float, *, packed: bool) -> pa.RecordBatch:
    """Return a batch of the log, with flights of seven fields; every so many payloads do not fit."""
    every = round(1 / share) if share else rows + 1
    payloads: list[object] = []
    for row in range(rows):
        flight: dict[str, object] = {
            "carrier": "AA" if (row + 1) % every else row,
            "flight": row,
            "delay": row / 2,
            "origin": "JFK",
            "dest": "LAX",
            "at": "2013-01-01T10:00:00Z",
            "more": "x" * 20,
        }
        payloads.append(msgspec.msgpack.encode(flight) if packed else json.dumps(flight).encode())
    headers: list[object] = [[{"key": HEADER_ENCODING, "value": PACKED.encode()}] if packed else []] * rows
    given: dict[str, list[object]] = {"value": payloads, "headers": headers, "topic": ["flights"] * rows}
    columns = [
        pa.array(given[field.name], field.type) if field.name in given else pa.nulls(rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in SCHEMA]))


def measure(rows: int, share: float, *, packed: bool) -> tuple[float, int]:
    """Return the processor's microseconds for a row, best of five, and how many did not fit."""
    typed = typed_columns(
        pa.schema({**FIELDS, "_corrupt_record": pa.binary()}), corrupt="_corrupt_record", mode="PERMISSIVE"
    )
    batch = make_batch(rows, share, packed=packed)
    unfit = rows - typed.parse(batch).column(len(FIELDS)).null_count
    taken: list[float] = []
    for _ in range(5):
        began = time.process_time()
        typed.parse(batch)
        taken.append(time.process_time() - began)
    return min(taken) / rows * 1e6, unfit


def main() -> None:
    """Print a line for each share."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for packed in (False, True):
        whole = 0.0
        for share in SHARES:
            taken, unfit = measure(rows, share, packed=packed)
            whole = whole or taken
            kind = "msgpack" if packed else "json"
            print(f"{kind:8} {unfit:6} of {rows} do not fit: {taken:6.2f} us/row, {taken / whole:5.2f}x")


if __name__ == "__main__":
    main()
