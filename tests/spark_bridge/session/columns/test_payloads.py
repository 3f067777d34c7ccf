"""Payloads of the shapes of real files: ``parse`` gives the rows that ``from_json`` gives of the same bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import MapType, StructType

from iris import spark_bridge
from tests.support.payloads import FIELDS, of_files, payloads

pytestmark = pytest.mark.long


def test_payloads_of_real_shapes_are_read_as_from_json_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    values = [*of_files(50_000, 1)]
    values += payloads(100_000 - len(values), 2)
    table = pa.table({"value": pa.array(values, pa.binary()), "raw": pa.array(values, pa.binary())})
    pq.write_table(table, str(tmp_path / "payloads.parquet"))
    schema = StructType.fromDDL(FIELDS)
    assert isinstance(schema, StructType)
    own = spark_bridge.parse(spark.read.parquet(str(tmp_path / "payloads.parquet")), FIELDS)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    spark_own = fn.from_json(fn.col("_raw").cast("string"), f"{FIELDS}, bad STRING", options).alias("p")
    both = own.withColumn("p", spark_own)
    alike = fn.col("p.bad").isNull() == fn.col("_corrupt_record").isNull()
    alike &= fn.col("_corrupt_record").eqNullSafe(fn.when(fn.col("p.bad").isNotNull(), fn.col("_raw")))
    filled: list[Column] = []
    for field in schema:
        one, other = fn.col(field.name), fn.col(f"p.{field.name}")
        filled.append(fn.count(one).alias(field.name))
        if isinstance(field.dataType, MapType):
            one, other = fn.map_entries(one), fn.map_entries(other)
        alike &= one.eqNullSafe(other)
    both = both.withColumn("alike", alike).persist()
    assert [bytes(row[0]) for row in both.where("NOT alike").select("_raw").limit(5).collect()] == []
    counts = both.agg(fn.count("*").alias("all"), fn.count("_corrupt_record").alias("bad"), *filled).first()
    both.unpersist()
    assert counts is not None
    assert counts["all"] == 100_000
    assert min(counts) > 300, counts
    assert counts["bad"] < 60_000, counts
