"""JSON as files and publishers have it, and as they break it: the same payloads for the same seed."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

FIELDS = (
    "name STRING, version STRING, n BIGINT, small TINYINT, d DOUBLE, f FLOAT, ok BOOLEAN, amount DECIMAL(20,4), "
    "at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, raw BINARY, dependencies MAP<STRING, STRING>, "
    "properties MAP<STRING, STRUCT<type: STRING, description: STRING, items: STRUCT<type: STRING>>>, type STRING, "
    "description STRING, required ARRAY<STRING>, list ARRAY<STRUCT<n: INT, amount: DECIMAL(9,2), list: ARRAY<DOUBLE>>>"
)
NAMES = tuple(field.split()[0] for field in FIELDS.split(", ") if field.split()[0][-1] not in ":>")
_TEXTS = (
    "", "tea", "naïve 東京 \U0001f600", "a\u2028b\0", "null", "1e5", "3e7a9", "12.50", "1,000", "2024-02-30",
    "2024-02-29", "2024-02-29T12:30:00+05:45", "2024-03-10T02:30:00Z", "2024-03-10 02:30:00.123456", "aGVsbG8=", "NaN",
    "INTEGER", "-0",
)  # fmt: skip
_NUMBERS = (
    "0", "-0", "1", "-1", "127", "128", "2147483648", "9223372036854775807", "9223372036854775808", "1" * 40, "0.1",
    "12.34", "-0.0", "1e5", "1E+5", "1.5e-7", "1e308", "1e309", "5e-324", "123456789.123456789", "16777217", "1.0",
)  # fmt: skip
_PROPER = {
    "ok": ("true", "false"), "small": ("1", "-128", "127"), "n": ("0", "9007199254740993"),
    "name": ('"tea"', '"\u00e9"'),
    "at": ('"2024-02-29T12:30:00+05:45"', '"2024-03-10T02:30:00Z"'), "local": ('"2024-03-10T02:30:00.123456"',),
    "day": ('"2024-02-29"',), "raw": ('"aGVsbG8="', '""'), "version": ('"1.0"',), "type": ('"object"',), "f": ("1.5",),
    "required": ('["a","b"]',), "description": ('"a text"',),
}  # fmt: skip


def frame(spark: SparkSession, *values: bytes | None) -> DataFrame:
    """Return these payloads as a source of events gives them, with their offsets."""
    rows = [(at, None if value is None else bytearray(value)) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, "offset INT, value BINARY").coalesce(1)


def long(number: int) -> bytes:
    """Return a number as Avro has it."""
    number, found = ((number << 1) ^ (number >> 63)) & (2**64 - 1), bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def payloads(count: int, seed: int) -> Iterator[bytes]:
    """Yield payloads of the fields above, one in four of them broken."""
    chosen = random.Random(seed)
    for _ in range(count):
        whole = _object(chosen, 0).encode("utf-8", "surrogatepass")
        yield broken(chosen, whole) if chosen.random() < 0.25 else whole


def broken(chosen: random.Random, whole: bytes) -> bytes:
    """Return a payload as it comes when something went wrong."""
    at = chosen.randrange(len(whole) + 1)
    kinds = (
        whole[:at], whole + b" behind", whole + whole, b" \n\t" + whole + b" \r\n", b"\xef\xbb\xbf" + whole,
        b"[" + whole + b"]", whole[:at] + bytes([chosen.randrange(256)]) + whole[at + 1 :],
        whole[:at] + whole[at + 1 :],
        whole.replace(b'"', b"'"), b'{"list":' * 40 + whole + b"}" * 40, whole[:at] + b"\\u" + whole[at:], b"", b"null",
        b"[]", whole.decode("utf-8", "replace").encode("utf-16"),
    )  # fmt: skip
    return chosen.choice(kinds)


def of_files(count: int, seed: int) -> Iterator[bytes]:
    """Yield objects of JSON files that are on this machine, as they stand there and packed."""
    chosen = random.Random(seed)
    files = sorted(path for root in (sys.prefix, "/usr/share") for path in Path(root).rglob("*.json"))
    chosen.shuffle(files)
    for path in files:
        try:
            text = path.read_bytes()
            found = json.loads(text)
        except (OSError, ValueError, RecursionError):
            continue
        whole = [text] if len(text) < 16_384 else []
        for one in chosen.sample(inner := [*_objects(found)], min(12, len(inner))):
            indent = chosen.choice((None, 2))
            whole.append(json.dumps(one, indent=indent, ensure_ascii=chosen.random() < 0.5).encode("utf-8", "replace"))
        for payload in whole:
            if len(payload) < 16_384:
                yield broken(chosen, payload) if chosen.random() < 0.1 else payload
                count -= 1
                if not count:
                    return


def _objects(value: Any) -> Iterator[Any]:
    inner: Sequence[Any] = ()
    if isinstance(value, dict):
        inner = [*cast("dict[str, Any]", value).values()]
    elif isinstance(value, list):
        inner = cast("Sequence[Any]", value)
    if inner:
        yield value
    for one in inner:
        yield from _objects(one)


def _object(chosen: random.Random, depth: int) -> str:
    names = [
        chosen.choice(NAMES if depth == 0 or chosen.random() < 0.5 else _TEXTS) for _ in range(chosen.randrange(9))
    ]
    blank = chosen.choice(("", "", " ", "\n  "))
    pairs = (f"{blank}{json.dumps(name, ensure_ascii=False)}:{blank}{_value(chosen, name, depth)}" for name in names)
    return "{" + ",".join(pairs) + blank + "}"


def _value(chosen: random.Random, name: str, depth: int) -> str:
    if name in _PROPER and chosen.random() < 0.7:
        return chosen.choice(_PROPER[name])
    kind = chosen.random()
    if depth < 5 and kind < (0.7 if name in ("dependencies", "properties") else 0.1):
        return _object(chosen, depth + 1)
    if depth < 5 and kind < (0.7 if name in ("list", "required") else 0.2):
        return "[" + ",".join(_value(chosen, "n", depth + 1) for _ in range(chosen.randrange(4))) + "]"
    if kind < (0.9 if name in ("n", "small", "d", "f", "amount") else 0.5):
        return chosen.choice((*_NUMBERS, str(chosen.randrange(-200, 200)), repr(chosen.uniform(-1e6, 1e6))))
    if kind > 0.97:
        return chosen.choice(("true", "false", "null", "NaN", "-INF", "007", "+1", ".5", "undefined"))
    return json.dumps(chosen.choice(_TEXTS), ensure_ascii=chosen.random() < 0.5)
