"""``format("iris")``: the Spark source and sink.

Promises: a range that is read twice has the same rows; a batch that is written twice is stored once; an unknown option
is an error.  Not here: connections and retries (iris.spark_bridge.client).
"""
