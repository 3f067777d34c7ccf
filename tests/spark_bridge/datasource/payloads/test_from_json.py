"""Payloads as columns, value by value beside Spark's own ``from_json``; what differs is listed here and in the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import Column, SparkSession, functions

from tests.support.bridges import BridgeProcess, publish

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SAME: dict[str, list[str]] = {
    "STRING": ['"x"', "5", "-0", "true", "null", '{"a": 1}', "[1, 2]", '"\\u00fc"', '"a\nb"', '{"a":"\\n"}'],
    "TINYINT": ["127", "-128"],
    "INT": ["5", "5.0", "5.5", '"5"', "1e2", "2147483648", "true", "null", "{}", "[]", '""', "-0", "01"],
    "BIGINT": ["9223372036854775808", "9223372036854775807", "1.0", '"1"'],
    "FLOAT": ["1", '"1"', "0.1", "NaN", "3.4028235e38"],
    "DOUBLE": [
        "1", "1.5", '"1.5"', '"NaN"', "NaN", "Infinity", '"Infinity"', "-Infinity", '"-Infinity"', '"INF"', "INF",
        "true", "1e300", '"+INF"', "9223372036854775808", '""',
    ],
    "BOOLEAN": ["true", "false", "1", '"true"', "0"],
    "DATE": [
        '"2013-01-01"', '"2013-1-1"', '"2013-01-01T10:00:00"', '"2013-01-01 x"', '"2013-02-30"', "0", "15706",
        '"2013"', '"2013-01"', '"01/02/2013"', '"epoch"', '""', '"10000-01-01"', '"-0001-01-01"', '" 2013-01-01 "',
        '"1500-01-01"', '"15706"',
    ],
    "TIMESTAMP": [
        '"2013-01-01T10:00:00Z"', '"2013-01-01T10:00:00.123456789Z"', '"2013-01-01T10:00:00"', '"2013-01-01 10:00:00"',
        '"2013-01-01"', '"2013-01"', '"2013"', '"2013-1-1 1:2:3"', '"2013-01-01T10:00:00+01:00"',
        '"2013-01-01T10:00:00+0100"', '"2013-07-01T10:00:00 Europe/Berlin"', '"2013-01-01T10:00"', '"2013-01-01T10"',
        '"2013-02-30T10:00:00Z"', "1356998400", "1356998400.5", "-1", '"1356998400"', '"now"', '""',
        '"2013-01-01T24:00:00Z"', '"2013-01-01T10:00:60Z"', '"10000-01-01T00:00:00Z"', '"0000-01-01T00:00:00Z"',
        '" 2013-01-01T10:00:00Z "', '"2013-01-01t10:00:00z"', '"2013-01-01T10:00:00,5Z"', '"1500-01-01T00:00:00Z"',
        "1e10", '"2013-01-01T10:00:00+01"', '"2013-01-01T10:00:00+1:00"', '"2013-W01-1T00:00:00"', '"20130101T100000"',
        '"2013-01-01T10:00:00+01:00:30"', '"2013-01-01T10:00:00-00:00"', '"2013-01-01T10:00:00UTC"',
        '"2013-01-01T10:00:00 UTC+1"', '"2013-01-01T10:00:00.Z"', '"2013-01-01T10:00:00+19:00"',
    ],
    "TIMESTAMP_NTZ": [
        '"2013-01-01T10:00:00"', '"2013-01-01T10:00:00Z"', '"2013-01-01"', "5", '"2013-01-01 10:00:00.5"',
    ],
    "DECIMAL(10,2)": [
        "12.5", '"12.5"', "1e3", '"1e3"', "123456789.12", "99999999.995", "true", '"x"', "NaN", '""', "12345678.90",
    ],
    "DECIMAL(38,10)": ["1234567890123456789012345678.0123456789"],
    "BINARY": ['"aGVsbG8="', '"aGVsbG8"', '"***"', "5", '"aGVs\\nbG8="', '""', '"_-8="'],
    "MAP<STRING,INT>": ['{"a":1,"b":null}', "[]", '{"a":"x","b":2}', "{}", "null"],
    "MAP<STRING,STRUCT<x:INT>>": ['{"a":{"x":1},"b":{}}'],
    "ARRAY<INT>": ["[1,null,2]", '[1,"x",2]', "5", '{"a":1}', "[]", "[[1]]"],
    "ARRAY<DATE>": ['["2013-01-01",null]', '["2013-01-01","2013-02-30"]'],
    "STRUCT<x:INT,y:STRING>": [
        '{"x":1,"y":"a"}', '{"x":"q","y":"a"}', "[1]", '[{"x":1}]', "5", "{}", '{"x":1,"x":2}', '{"X":1}',
    ],
    "ARRAY<STRUCT<x:INT,y:INT>>": ['[{"x":1,"y":2},{"x":"q","y":3}]', '{"x":1,"y":2}'],
    "VARIANT": [
        '{"a":1,"b":[1.5,"x",null,true]}', "5", "12.50", "1e3", '"x"', "null", "123456789012345678901234567890", "{}",
    ],
}  # fmt: skip

DIFFERENT: dict[str, dict[str, str | None]] = {
    # A number stays as it is written, from_json writes it anew.
    "STRING": {"1.50": "1.50", "1e3": "1e3", "NaN": "NaN", '"\\ud800"': None},
    # What its column cannot hold does not fit; from_json makes another number of it, or infinity.
    "TINYINT": {"128": None},
    "FLOAT": {"1e300": None, "3.5e38": None},
    "DOUBLE": {"1e999": None, "9" * 400: None, "+INF": None},
    "DECIMAL(10,2)": {"12.345": None, '"1,000.5"': None, '" 1.5 "': "1.50"},
    "TIMESTAMP": {"9223372036854775807": None, '"10:00:00"': None},
    # The last of equal names counts; from_json keeps both in a map, and refuses them in a variant.
    "MAP<STRING,INT>": {'{"a":1,"a":2}': '{"k13":{"a":2}}'},
    "VARIANT": {'{"a":1,"a":2}': '{"k19":{"a":2}}'},
}
"""Our value for each; None: it does not fit."""

WHOLE_SAME = [
    "5", "null", "[1]", '"x"', "{}", '[{"n":1}]', ' {"n":1}\n', '{"n":1,}', '{"n":1', '{"m":1,"n":"x"}', "{n:1}",
    '{"n":1,"z":NaN}', '{"n":1,"z":"\n"}', '{"n":01}', "\ufeff{}", '{"n":1,"z":' + "[" * 1001 + "]" * 1001 + "}",
]  # fmt: skip
WHOLE_DIFFERENT = {"": None, '{"n":1}x': None, '{"n":1} {"n":2}': None, "{'n':1}": None}
"""from_json gives no row at all for nothing, passes over what follows a value, and takes other quotes."""


def test_each_value_is_that_of_from_json(spark: SparkSession, realm: Path, tmp_path: Path) -> None:
    kinds = [*SAME]
    names = {kind: f"k{number}" for number, kind in enumerate(kinds)}
    schema = ", ".join(f"{names[kind]} {kind}" for kind in kinds) + ", n INT, m INT, _corrupt_record STRING"
    cases = [(kind, value) for kind, values in SAME.items() for value in values]
    cases += [(kind, value) for kind, values in DIFFERENT.items() for value in values]
    cases += [("", text) for text in (*WHOLE_SAME, *WHOLE_DIFFERENT)]
    texts = [f'{{"{names[kind]}":{value},"n":7}}' if kind else value for kind, value in cases]
    with BridgeProcess(tmp_path / "log"):
        publish([text.encode() for text in texts], topic="t")
        ours = spark.read.format("iris").schema(f"{schema}, _offset BIGINT").load()
        log = spark.read.format("iris").load().select("offset", functions.col("value").cast("string").alias("text"))
        parsed = functions.from_json("text", schema, {"timeZone": "UTC"})
        theirs = log.select(functions.col("offset").alias("_offset"), parsed.alias("r")).select("_offset", "r.*")
        found, expected = (
            [
                {name: value for name, value in row.asDict().items() if value is not None}
                for row in frame.orderBy("_offset")
                .select(*(_text(names[kind], kind).alias(names[kind]) for kind in kinds), "n", "m", "_corrupt_record")
                .collect()
            ]
            for frame in (ours, theirs)
        )
    assert len(found) == len(expected) == len(texts)
    wrong: list[object] = []
    for (kind, value), one, other in zip(cases, found, expected, strict=True):
        differs = value in (DIFFERENT.get(kind, {}) if kind else WHOLE_DIFFERENT) and value not in SAME.get(kind, [])
        if not differs:
            wrong += [] if one == other else [(kind, value, one, other)]
            continue
        given = DIFFERENT[kind][value] if kind else None
        if one == other or ("_corrupt_record" not in one) != (given is not None):
            wrong.append((kind, value, "listed as different", one, other))
        elif given is not None and one[names[kind]] != given:
            wrong.append((kind, value, "our value", one))
    assert wrong == []


def _text(name: str, kind: str) -> Column:
    plain = kind not in ("VARIANT", "BINARY") and not kind.startswith(("MAP", "ARRAY", "STRUCT"))
    return functions.col(name).cast("string") if plain else functions.to_json(functions.struct(name))
