"""``parse``: columns of the payloads in a DataFrame of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.columns.frame import (
    CORRUPT,
    HEAD,
    MARK,
    PARSED,
    REASON,
    UNFIT,
    UNFRAMED,
    UNKNOWN,
    frame_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Format = Literal["json", "avro", "protobuf"]


def parse(
    df: DataFrame,
    schema: str | StructType,
    *,
    format: Format = "json",  # noqa: A002 -- Spark's word
    schemas: Mapping[int, str] | Mapping[int, bytes] | bytes | None = None,
    unknown: Literal["fail", "corrupt"] = "fail",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Make columns of the payloads in a DataFrame of ``format("iris")``, a table or a stream.

    Example::

        events = spark.readStream.format("iris").option("subscribe", "orders.>").load()
        orders = iris.spark_bridge.parse(events, "item STRING, price DOUBLE")

    The columns are the fields of the payload; ``_corrupt_record``, which has the bytes of a payload that does not fit,
    and ``_corrupt_reason``, which is ``unfit``, ``unframed`` or ``unknown`` then; and those of ``df`` but ``value``,
    with an underscore before their names, such as ``_topic``.  A null value is a row of nulls that fits.  Spark reads
    the payloads, by ``from_json``, ``from_avro`` or ``from_protobuf`` in the mode ``PERMISSIVE``.

    Args:
        df: has a column ``value``.
        schema: of JSON the fields, in Spark's words or as a ``StructType``.  Of Avro a record in JSON, to which each
            payload is resolved.  Of Protobuf the full name of the message.
        format: of the payloads.  ``json`` is msgpack as well: the source makes JSON of what has such a form.
        schemas: those that payloads may have, by the id in Confluent's frame.  Of Avro they are in JSON; None: payloads
            have no frame, and are written with ``schema``.  Of Protobuf they are descriptor sets, and all payloads are
            read with the one of the greatest id; one set without an id: payloads have no frame.
        unknown: what becomes of a frame with another id: it ends the query, or is a payload that does not fit.
        options: of Spark's function, such as ``timestampFormat``.

    Raises:
        ConfigError: an argument is wrong, two columns would have one name, or Spark lacks the package for the format,
            which the message names.
        AnalysisException: Spark's own: it has no columns for such a schema.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as fn

    given = dict(options or {})
    if "value" not in df.columns:
        raise ConfigError("parse reads the column value, and there is none: give it what format iris yields")
    if format not in ("json", "avro", "protobuf") or unknown not in ("fail", "corrupt"):
        raise ConfigError(f"format is {format!r} and unknown {unknown!r}: use json, avro or protobuf; fail or corrupt")
    if format == "json" and schemas is not None:
        raise ConfigError("schemas is about Avro and Protobuf: give format as well, or leave it out")
    if format != "json" and "mode" in map(str.lower, given):
        raise ConfigError(f"option mode has no place in {format}: select the rows whose {CORRUPT} is null")
    if format != "json" and not isinstance(schema, str):
        raise ConfigError(f"schema is a {type(schema).__name__}: for {format} it is a text")
    if not (schemas or schemas is None):
        raise ConfigError("schemas is empty: give the schemas that payloads may have, by id")
    try:
        if format == "json":
            parsed, payload, misfit = _json(schema, given)
        elif format == "avro":
            from iris.spark_bridge.session.columns.avro import avro_columns

            parsed, payload, misfit = avro_columns(df.sparkSession, str(schema), cast("Any", schemas), given)
        else:
            from iris.spark_bridge.session.columns.protobuf import protobuf_columns

            parsed, payload, misfit = protobuf_columns(str(schema), cast("Any", schemas), given)
        if isinstance(schemas, Mapping):
            parsed, misfit = _known(parsed, misfit, sorted(schemas), fails=unknown == "fail")
        held = df.withColumn(PARSED, parsed)
    except (AnalysisException, TypeError) as error:
        if f"{format.upper()}_NOT_LOADED" in str(error) or "JavaPackage" in str(error):
            package = f"org.apache.spark:spark-{format}_2.13:{df.sparkSession.version}"
            raise ConfigError(f"Spark reads {format} with a package: set spark.jars.packages to {package}") from None
        raise
    return _select(held, payload, fn.when(fn.col("value").isNotNull(), misfit))


def _known(parsed: Column, misfit: Column, ids: Sequence[int], *, fails: bool) -> tuple[Column, Column]:
    """Tell payloads without a frame, and those with another id than these, from those that do not fit."""
    from pyspark.sql import functions as fn

    frame = fn.substring("value", 1, HEAD)
    framed = (fn.length(frame) == HEAD) & (fn.substring("value", 1, 1) == fn.lit(b"\0"))
    other = framed & ~frame.isin([frame_of(number) for number in ids])
    if fails:
        number = fn.conv(fn.hex(fn.substring("value", 2, HEAD - 1)), 16, 10)
        text = fn.concat(
            fn.lit("an event has the schema "),
            number,
            fn.lit(f", and parse knows {[*ids]}: give it that one, too, and start the query again"),
        )
        parsed = fn.when(other, fn.raise_error(text)).otherwise(parsed)
    return parsed, fn.when(~framed, UNFRAMED).when(other, UNKNOWN).otherwise(misfit)


def _select(held: DataFrame, payload: str | None, misfit: Column) -> DataFrame:
    """Return the fields of the payload, why it does not fit, and the columns of the log.

    Args:
        held: has the payload in ``__parsed``.
        payload: field of that which it is; None: itself.
        misfit: a word, or null.
    """
    from pyspark.sql import functions as fn

    kind: Any = held.schema[PARSED].dataType
    found = fn.col(PARSED)
    if payload is not None:
        kind, found = kind[payload].dataType, found.getField(payload)
    names: list[str] = [name for name in kind.names if name not in (CORRUPT, MARK)]
    own = {f"_{name}": fn.col(name) for name in held.columns if name not in ("value", PARSED)}
    taken = [name.lower() for name in (*own, CORRUPT, REASON, *names)]
    if twice := [name for name in names if taken.count(name.lower()) > 1]:
        raise ConfigError(f"field {twice[0]} of the payload has the name of another column: leave it out or rename it")
    return held.withColumn(REASON, misfit).select(
        *(found.getField(name).alias(name) for name in names),
        fn.when(fn.col(REASON).isNotNull(), fn.col("value")).alias(CORRUPT),
        REASON,
        *(column.alias(name) for name, column in own.items()),
    )


# -- JSON ------------------------------------------------------------------------------------------------------

_DIGIT: Final = r"(?:\p{Nd}|\\u\p{XDigit}{4})"
_EXPONENT: Final = (
    r"""[\s:,\[]["']?(?:[\p{Nd}.+-]|\\u\p{XDigit}{4})+?(?:[eE]|\\u00[46]5)(?:[-+]|\\u002[bBdD])?"""
    rf"""0*+{_DIGIT}{{5}}"""
)
"""A number with an exponent of five digits: to fit one into a DECIMAL may take Spark hours."""


def _json(schema: str | StructType, options: dict[str, str]) -> tuple[Column, None, Column]:
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType, StructField, StructType

    kind: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(kind, StructType):
        raise ConfigError(f"schema is {schema!r}: name the fields, such as 'item STRING, price DOUBLE'")
    if CORRUPT in kind.names:
        raise ConfigError(f"the schema has {CORRUPT}, which parse adds itself: leave it out")
    fields = StructType([*kind.fields, StructField(CORRUPT, StringType())])
    text = fn.col("value").cast("string")
    if "decimal(" in kind.simpleString():
        text = fn.when(text.rlike(_EXPONENT), "no JSON").otherwise(text)
    parsed = fn.from_json(text, fields, {**options, "columnNameOfCorruptRecord": CORRUPT})
    return parsed, None, fn.when(fn.col(PARSED).getField(CORRUPT).isNotNull(), UNFIT)
