"""Add up the orders in the log of a bridge, with pandas."""

import json

import pandas
import pyarrow

import iris.arrow
import iris.sync

with iris.sync.open_node("analyst") as node, node.bridge().consume("orders.>", until="now") as orders:
    log = pyarrow.RecordBatchReader.from_batches(iris.arrow.SCHEMA, map(iris.arrow.to_arrow, orders))
    frame = log.read_pandas()

sold = pandas.json_normalize([json.loads(value) for value in frame["value"]])
print(sold.groupby("item")["price"].sum())
