"""Payloads in Avro, read by Spark's ``from_avro``.

Spark makes a record of nulls of what it cannot read, as if that had been published.  So the frame is read as part of
the record, as a field that is never null: bytes of a fixed number, which is 0 without a frame.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from iris.kernel.errors import ConfigError
from iris.kernel.shapes import is_list, is_map
from iris.spark_bridge.session.session import AVRO_LIMIT

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FRAME: Final = "frame"
PAYLOAD: Final = "payload"
HEAD: Final = 5
"""Size of Confluent's frame, in bytes: a zero, and the id of the schema."""


def frame_of(number: int) -> bytes:
    """Return the frame with the id of a schema."""
    return b"\0" + number.to_bytes(HEAD - 1)


def read_avro(
    spark: SparkSession, schema: str, schemas: Mapping[int, str] | None, options: Mapping[str, str]
) -> Column:
    """Return the expression that reads ``value``: a record of the frame and the payload.

    Raises:
        ConfigError: a schema is wrong, or Java's Avro has no bounds in this session.
    """
    from pyspark.sql import functions as fn
    from pyspark.sql.avro.functions import from_avro

    # Of a session that was there before, ``configure`` changes its own settings, and no longer those of its Java.
    context = getattr(spark, "sparkContext", None)
    get: Callable[[str, str], str | None] = spark.conf.get if context is None else context.getConf().get
    for side in ("driver", "executor"):
        names = [f"spark.{side}.{name}JavaOptions" for name in ("default", "extra")]
        if not any(AVRO_LIMIT in (get(name, "") or "") for name in names):
            raise ConfigError(
                "an event of few bytes could take all of Java's memory: have iris.spark_bridge.configure make the "
                f"session, or set -D{AVRO_LIMIT}=1048576 in {names[0]}"
            )
    size = 0 if schemas is None else HEAD
    reader = _framed(schema, size)

    def read(writer: str) -> Column:
        return from_avro("value", _framed(writer, size), {**options, "mode": "PERMISSIVE", "avroSchema": reader})

    if schemas is None:
        return read(schema)
    parsed = fn.lit(None)
    for number, writer in schemas.items():
        parsed = fn.when(fn.substring("value", 1, HEAD) == fn.lit(frame_of(number)), read(writer)).otherwise(parsed)
    return parsed


def _framed(schema: str, size: int) -> str:
    """Return the schema of a record behind so many bytes.

    Raises:
        ConfigError: it is none, or has what takes no bytes, of which an event could name any number in an array.
    """
    try:
        record = json.loads(schema)
        _check_size(record if record["type"] == "record" else None)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ConfigError(f"{str(schema)[:80]!r} is no schema of an Avro record: give one in JSON") from None
    frame = {"name": FRAME, "type": {"type": "fixed", "name": "IrisFrame", "size": size}}
    return json.dumps({"type": "record", "name": "IrisFramed", "fields": [frame, {"name": PAYLOAD, "type": record}]})


def _check_size(schema: object) -> None:
    """Make sure that each value takes a byte: that of a union does, whatever is in it."""
    union: list[object] = schema if is_list(schema) else []
    named: dict[str, Any] = schema if is_map(schema) else {}
    inner = [one for one in union if one != "null"] + [field["type"] for field in named.get("fields", ())]
    inner += [named[name] for name in ("items", "values") if name in named]
    if schema == "null" or (named.get("type") in ("record", "error") and not inner) or named.get("size") == 0:
        raise ConfigError(
            f"the schema has {json.dumps(schema)[:80]}, which takes no bytes, so that an event could name any number "
            "of them: leave it out, or use null in a union"
        )
    for one in inner if isinstance(schema, str | list) else (*inner, named["type"]):
        _check_size(one)
