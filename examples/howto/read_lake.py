"""Reads what a bridge has written to its tier, without the bridge."""

import pyarrow.dataset

lake = pyarrow.dataset.dataset("lake/bridge", partitioning="hive")
for event in lake.to_table(["topic", "offset", "value"]).sort_by("offset").to_pylist():
    print(event["topic"], event["offset"], event["value"].decode())
