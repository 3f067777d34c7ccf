"""Payloads in Avro, read by Spark's ``from_avro``.

Spark makes a record of nulls of what it cannot read, as if that had been published.  So the frame is read as part of
the record, as a field that is never null: bytes of a fixed number, which is 0 without a frame.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.columns.frame import HEAD, PARSED, UNFIT, frame_of
from iris.spark_bridge.session.session import AVRO_LIMIT

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_PAYLOAD: Final = "payload"
_FRAME: Final = "frame"


def avro_columns(
    spark: SparkSession, schema: str, schemas: Mapping[int, str] | None, options: dict[str, str]
) -> tuple[Column, str, Column]:
    """Return the expression for payloads, the field of it that has them, and when one does not fit; see ``parse``."""
    from pyspark.sql import functions as fn
    from pyspark.sql.avro.functions import from_avro

    for side in ("driver", "executor"):
        names = [f"spark.{side}.{name}JavaOptions" for name in ("default", "extra")]
        if not any(AVRO_LIMIT in (spark.conf.get(name, "") or "") for name in names):
            raise ConfigError(
                "an event of few bytes could take all of Java's memory: have iris.spark_bridge.configure make the "
                f"session, or set -D{AVRO_LIMIT}=1048576 in {names[0]}"
            )
    if "recursivefieldmaxdepth" in map(str.lower, options):
        raise ConfigError(
            "option recursiveFieldMaxDepth has no place here: an event could nest until Spark's stack ends"
        )
    size = 0 if schemas is None else HEAD
    reader = _framed(schema, size)

    def read(writer: str) -> Column:
        return from_avro("value", _framed(writer, size), {**options, "mode": "PERMISSIVE", "avroSchema": reader})

    if schemas is None:
        parsed = read(schema)
    else:
        branches = [(frame_of(number), read(writer)) for number, writer in schemas.items()]
        frame, (first, *more) = fn.substring("value", 1, HEAD), branches
        parsed = fn.when(frame == fn.lit(first[0]), first[1])
        for mark, branch in more:
            parsed = parsed.when(frame == fn.lit(mark), branch)
    return parsed, _PAYLOAD, fn.when(fn.col(PARSED).getField(_FRAME).isNull(), UNFIT)


def _framed(schema: str, size: int) -> str:
    """Return the schema of a record behind so many bytes.

    Raises:
        ConfigError: it is none, or has an array whose items take no bytes, of which an event could name any number.
    """
    try:
        record: Any = json.loads(schema)
    except ValueError:
        record = None
    if not isinstance(record, dict) or record.get("type") != "record":
        raise ConfigError(f"{schema[:80]!r} is no schema of an Avro record, in JSON")
    _check_arrays(record, {})
    frame = {"name": _FRAME, "type": {"type": "fixed", "name": "IrisFrame", "size": size}}
    return json.dumps({"type": "record", "name": "IrisFramed", "fields": [frame, {"name": _PAYLOAD, "type": record}]})


def _check_arrays(schema: Any, empty: dict[str, bool]) -> bool:
    """Tell whether a value of a schema may take no bytes; ``empty`` says so of the types by name."""
    if isinstance(schema, list):
        for one in schema:
            _check_arrays(one, empty)
        return False
    if not isinstance(schema, dict):
        return schema == "null" or empty.get(str(schema).rpartition(".")[2], False)
    kind, name = schema.get("type"), str(schema.get("name")).rpartition(".")[2]
    found = False
    if kind == "record":
        found = not sum([not _check_arrays(field.get("type"), empty) for field in schema.get("fields", ())])
    elif kind == "fixed":
        found = not schema.get("size")
    elif kind in ("array", "map"):
        if _check_arrays(schema.get("items", schema.get("values")), empty) and kind == "array":
            raise ConfigError("a schema has an array of items without bytes: an event could name any number of them")
    elif kind != "enum":
        return _check_arrays(kind, empty)
    empty[name] = found
    return found
