"""Data loss: events of a query's ranges that the log does not have; an error or a count, by ``failOnDataLoss``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from iris.kernel.wire import saturated
from iris.spark_bridge.client import BlockingPortal, BridgeClient, BridgeWatch, Range
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.errors import DataLost
from iris.spark_bridge.events.damage import Damage
from iris.spark_bridge.events.gaps import Gap
from iris.spark_bridge.log import TopicFilter

_log: Final = logging.getLogger("iris")

_NAMED: Final = 3
"""Gaps that the text of an error describes; the bridge's status has all."""


def count_missing(options: SourceOptions, portal: BlockingPortal, watch: BridgeWatch, ranges: Sequence[Range]) -> int:
    """Return how many events are missing in some ranges of the topics that a query wants, and log it.

    Nothing is asked of the bridge where none are.

    Raises:
        DataLost: some are, and that is to be an error.
    """
    extents = watch.extents
    suspect = [found for found in ranges if found.shard in extents and extents[found.shard].gap >= found.start]
    missing: list[tuple[str, Gap]] = []
    for found in suspect:
        address = watch.address(found.shard)
        if address is not None:
            gaps = portal.call(partial(_gaps, address=address, found=found, topics=options.topics))
            wanted = TopicFilter(options.topics, options.topic_regex)
            missing += [(found.shard, gap) for gap in gaps if wanted.wants(gap.topic)]
    if not missing:
        return 0
    count = 0
    for _, gap in missing:
        count = saturated(count + gap.count)
    what = "; ".join(gap.describe(shard) for shard, gap in missing[:_NAMED])
    more = f"; and {len(missing) - _NAMED} more gaps" if len(missing) > _NAMED else ""
    bridge = options.connection.bridge
    if options.fail_on_data_loss:
        raise DataLost(
            f"bridge {bridge!r} has not got all events that were published on the topics of this query: {what}{more}. "
            "They were published while it was away, or lost on their way without confirmation, and are nowhere in its "
            "log. Have them published again if somebody still has them, and set failOnDataLoss to false to go on "
            f"without them, for one batch at least ('iris bridge status --name {bridge}' lists all gaps)"
        )
    _log.warning(
        "the query goes on without %d events that bridge %s has not got: %s%s",
        count,
        bridge,
        what,
        more,
        extra={"bridge": bridge, "count": count},
    )
    return count


async def _gaps(client: BridgeClient, *, address: str, found: Range, topics: Sequence[str]) -> list[Gap]:
    async with aclosing(client.gaps(address, found.shard, found.start, found.end, topics)) as gaps:
        return [gap async for gap in gaps]


def count_damaged(options: SourceOptions, portal: BlockingPortal, watch: BridgeWatch, ranges: Sequence[Range]) -> int:
    """Return how many events that a query wants are known to be damaged in ranges that it has read, and log it.

    Nothing is asked of the bridge where none are.
    """
    extents = watch.extents
    wanted = TopicFilter(options.topics, options.topic_regex)
    total = 0
    for found in ranges:
        address = watch.address(found.shard)
        if address is None or found.shard not in extents or extents[found.shard].gap < found.start:
            continue
        count, places = portal.call(partial(_damage, address=address, found=found, wanted=wanted))
        if count:
            total = saturated(total + count)
            what = "; ".join(damage.describe(found.shard) for damage in places[:_NAMED])
            more = f"; and {len(places) - _NAMED} more stretches" if len(places) > _NAMED else ""
            bridge = options.connection.bridge
            _log.warning(
                "the query has gone on without %d events that are damaged in the log of bridge %s: %s%s",
                count,
                bridge,
                what,
                more,
                extra={"bridge": bridge, "count": count},
            )
    return total


async def _damage(
    client: BridgeClient, *, address: str, found: Range, wanted: TopicFilter
) -> tuple[int, Sequence[Damage]]:
    return await client.damage(address, found.shard, found.start, found.end, wanted)
