"""Inline sink: the driver's own process sends small batches to the bridge, without a Python worker.

Otherwise Spark asks three Python processes, one after the other, to publish a batch: for a writer, to write, and to
commit.  For a batch of one event that takes longer than Spark takes for everything else.

The bridge and the commit note are those of ``iris.spark_bridge.datasource.sink``: a batch that is repeated is in the
log once, whichever path the repeat takes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from iris.kernel.config import KIB
from iris.spark_bridge.client import portal_to
from iris.spark_bridge.datasource.options import parse_sink_options
from iris.spark_bridge.datasource.sink import DriverRows, check_columns, commit_parts, publish_rows, to_rows
from iris.spark_bridge.staging import new_part, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BYTES: Final = 256 * KIB
"""Largest batch that is published inline, in bytes; a larger one is left to the workers, however few rows it has."""


def publish_inline(batch: DataFrame, number: int, *, query: str, rows: int, given: Mapping[str, str]) -> bool:
    """Publish a batch that is small; of one that is not, nothing.

    Args:
        batch: rows to publish.
        number: number of the batch.
        query: id of the query.
        rows: most rows of a batch that counts as small.
        given: the options of the sink.

    Returns:
        Whether it was small.

    Raises:
        ConfigError: an option is wrong, or rows cannot be published.
        Errors of ``BridgeClient.commit``, and of Spark.
    """
    options = parse_sink_options({**given, "query": query, "batch": str(number)}, streaming=False)
    check_columns(batch.schema, options)
    # collect() takes 39 ms of Java's processor time, this takes 34; and its rows would be taken apart again.
    table = batch.limit(rows + 1).toArrow()
    if table.num_rows > rows or table.nbytes > _BYTES:
        return False
    few = [to_rows(found, options) for found in table.to_batches()]
    portal = portal_to(options.connection)
    if options.delivery == "at-least-once":
        for found in few:
            portal.call(partial(publish_rows, rows=found))
        return True
    stream = io.BytesIO()
    write_rows(stream, few)
    carried = DriverRows(new_part(query=query, batch=number, partition=0), stream.getvalue())
    portal.call(partial(commit_parts, staged=[], carried=[carried]))
    return True
