"""Add up the orders in the log of a bridge, with DuckDB."""

import duckdb
import pyarrow

import iris.arrow
import iris.sync

TOTALS = """
    SELECT value->>'$.item' AS item, sum((value->>'$.price')::DOUBLE) AS total
    FROM log GROUP BY item ORDER BY item
"""

with iris.sync.open_node("analyst") as node, node.bridge().consume("orders.>", until="now") as orders:
    log = pyarrow.RecordBatchReader.from_batches(iris.arrow.SCHEMA, map(iris.arrow.to_arrow, orders))
    print(duckdb.sql(TOTALS).fetchall())
