"""``parse``: columns of the payloads in a DataFrame of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.columns.avro import FRAME, HEAD, PAYLOAD, frame_of, read_avro
from iris.spark_bridge.session.columns.protobuf import MARK, read_protobuf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Format = Literal["json", "avro", "protobuf"]

CORRUPT: Final = "_corrupt_record"
"""Column with the bytes of a payload that does not fit; null where it does."""
REASON: Final = "_corrupt_reason"
"""Why: ``unfit``, ``unframed`` or ``unknown``; null where it fits."""
_PARSED: Final = "parsed"
"""A column on the way; like that of the reason it has no underscore before it, as each column of the log has."""

_OWN_OPTIONS: Final[Mapping[str, Sequence[str]]] = {
    "json": ("columnnameofcorruptrecord",),
    "avro": ("mode", "avroschema", "avroschemaurl", "recursivefieldmaxdepth"),
    "protobuf": ("mode",),
}
"""Options that parse sets itself; and one by which an event could nest until the stack of Spark's Java ends."""


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
    if format not in _OWN_OPTIONS or unknown not in ("fail", "corrupt"):
        raise ConfigError(f"format is {format!r} and unknown {unknown!r}: use json, avro or protobuf; fail or corrupt")
    if taken := [name for name in given if name.lower() in _OWN_OPTIONS[format]]:
        raise ConfigError(f"option {taken[0]} has no place in {format}: select the rows whose {CORRUPT} is null")
    if format == "json" and schemas is not None:
        raise ConfigError("schemas is about Avro and Protobuf: give format as well, or leave it out")
    if format != "json" and not isinstance(schema, str):
        raise ConfigError(f"schema is a {type(schema).__name__}: give a text for {format}")
    if not (schemas or schemas is None):
        raise ConfigError("schemas is empty: give the schemas that payloads may have, by id")
    ids = [*schemas] if isinstance(schemas, Mapping) else []
    if wrong := [one for one in ids if type(one) is not int or not 0 <= one < 2**32]:
        raise ConfigError(f"schemas has the id {wrong[0]!r}: use whole numbers from 0 to 2^32 - 1")
    own = [f"_{name}" for name in df.columns if name != "value"]
    if column := _doubled([*own, CORRUPT, REASON]):
        raise ConfigError(f"two columns would be {column}: rename {column[1:]}, or drop it, before parse")
    whole = fn.col(_PARSED)
    try:
        if format == "json":
            parsed, found, unfit = _read_json(schema, given), whole, whole.getField(CORRUPT).isNotNull()
        elif format == "avro":
            parsed = read_avro(df.sparkSession, str(schema), cast("Any", schemas), given)
            found, unfit = whole.getField(PAYLOAD), whole.getField(FRAME).isNull()
        else:
            parsed = read_protobuf(str(schema), cast("Any", schemas), given)
            found, unfit = whole, whole.getField(MARK).isNull()
        misfit = fn.when(unfit, "unfit")
        if ids:
            parsed, misfit = _known(parsed, misfit, sorted(ids), fails=unknown == "fail")
        columns = (fn.col(f"`{name.replace('`', '``')}`").alias(f"_{name}") for name in df.columns if name != "value")
        held = df.select("value", parsed.alias(_PARSED), *columns)
        kind: Any = held.select(found.alias(_PARSED)).schema[_PARSED].dataType
    except (AnalysisException, TypeError) as error:
        if f"{format.upper()}_NOT_LOADED" in str(error) or "JavaPackage" in str(error):
            package = f"org.apache.spark:spark-{format}_2.13:{df.sparkSession.version}"
            raise ConfigError(f"Spark reads {format} with a package: set spark.jars.packages to {package}") from None
        raise
    names: list[str] = [name for name in kind.names if name != {"json": CORRUPT, "protobuf": MARK}.get(format)]
    if field := _doubled([*names, *own, CORRUPT, REASON]):
        raise ConfigError(f"field {field} of the payload has the name of another column: leave it out or rename it")
    reason = fn.when(fn.col("value").isNotNull(), misfit)
    return held.withColumn("reason", reason).select(
        *(found.getField(name).alias(name) for name in names),
        fn.when(fn.col("reason").isNotNull(), fn.col("value").cast("binary")).alias(CORRUPT),
        fn.col("reason").alias(REASON),
        *(fn.col(f"`{name.replace('`', '``')}`") for name in own),
    )


def _doubled(names: Sequence[str]) -> str | None:
    """Return the first name that another one is but for its case."""
    lower = [name.lower() for name in names]
    return next((name for name in names if lower.count(name.lower()) > 1), None)


def _known(parsed: Column, misfit: Column, ids: Sequence[int], *, fails: bool) -> tuple[Column, Column]:
    """Tell payloads without a frame, and those with another id than these, from those that do not fit."""
    from pyspark.sql import functions as fn

    frame = fn.substring("value", 1, HEAD)
    framed = (fn.length(frame) == HEAD) & (fn.substring("value", 1, 1) == fn.lit(b"\0"))
    other = framed & ~frame.isin([frame_of(number) for number in ids])
    reason = fn.lit("unknown")
    if fails:
        number = fn.conv(fn.hex(fn.substring("value", 2, HEAD - 1)), 16, 10)
        advice = f", and parse knows {[*ids]}: give it that one, too, and start the query again"
        error = fn.raise_error(fn.concat(fn.lit("an event has the schema "), number, fn.lit(advice)))
        parsed = fn.when(other, error).otherwise(parsed)
        # Where only what fits is selected, Spark looks at the reason first, and at nothing else of what does not.
        reason = error
    return parsed, fn.when(~framed, "unframed").when(other, reason).otherwise(misfit)


# -- JSON ------------------------------------------------------------------------------------------------------

# Each is linear in the text, and holds no group that repeats without an end, for which Java takes a frame of its stack.
# Each payload is searched for this one: it has no alternatives, with which Java takes four times as long.
_SUSPECT: Final = r"[\p{Nd}.,\\][eEu][\p{XDigit}\p{Nd},+-]"
_EXPONENT: Final = (
    r"[\s:,\[/][\p{Nd}.+-]++[eE][+-]?+0*+\p{Nd}{%(digits)d}"
    # In quotes there may be commas, which Spark removes, and escapes, but for those of what is no digit anywhere.
    r"""|(?:["']|\\u\p{XDigit}{4})[\p{Nd}.,+-]*+[eE]"""
    r"""(?:[\p{Nd},+-]*+\\u(?!00[^23]|[2-9])|[0,+-]*+(?:\p{Nd},*+){%(digits)d}[\p{Nd},]*+["'])"""
)
_HOSTILE: Final = _EXPONENT % {"digits": 5} + r"|\\u00[46]5"
"""A number with an exponent of five digits: to fit one into a DECIMAL may take Spark hours."""
_COSTLY: Final = _EXPONENT % {"digits": 4}
"""One takes Spark a millisecond, and a payload has place for 130,000."""
_MOST_COSTLY: Final = 16
_MOST_DIGITS: Final = 10_000
_LONG: Final = rf"""["'][\p{{Nd}}.,+-]{{{_MOST_DIGITS}}}"""
"""A number in quotes, for which there is no limit of Spark's own."""


def _read_json(schema: str | StructType, options: dict[str, str]) -> Column:
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StringType, StructField, StructType

    kind = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(kind, StructType):
        raise ConfigError(f"schema is {schema!r}: name the fields, such as 'item STRING, price DOUBLE'")
    if CORRUPT in kind.names:
        raise ConfigError(f"the schema has {CORRUPT}, which parse adds itself: leave it out")
    fields = StructType([*kind.fields, StructField(CORRUPT, StringType())])
    text = fn.col("value").cast("string")
    if "decimal(" in kind.simpleString():
        if other := [name for name in options if name.lower() in ("locale", "allowbackslashescapinganycharacter")]:
            raise ConfigError(
                f"option {other[0]} has no place beside a DECIMAL: it would hide numbers that hold up Spark"
            )
        costly = fn.regexp_count(text, fn.lit(_COSTLY)) > _MOST_COSTLY
        hostile = text.rlike(_SUSPECT) & (text.rlike(_HOSTILE) | costly)
        long = (fn.octet_length("value") > _MOST_DIGITS) & text.rlike(_LONG)
        text = fn.when(hostile | long, "no JSON").otherwise(text)
    return fn.from_json(text, fields, {**options, "columnNameOfCorruptRecord": CORRUPT})
