"""Interest: the topics of each node.  Pattern index, interest of peers, durable subscriptions, shards, start offsets.

Promises: a match costs work by the number of pattern shapes and not of patterns; the interest of one peer takes bounded
memory; a change that a full link did not accept is sent again.  Not here: events.
"""

from iris.patterns.pubsub.interest.copies import ServedClusters, copies_cluster, primary_cluster, promotion_advice
from iris.patterns.pubsub.interest.durable_names import DurableRecord, NameId
from iris.patterns.pubsub.interest.durable_subscribers import DurableSubscriber, DurableSubscribers
from iris.patterns.pubsub.interest.retry import InterestRetry
from iris.patterns.pubsub.interest.shards import MAX_SHARDS, ShardMap, ShardMaps, Share, check_share, stable_hash
from iris.patterns.pubsub.interest.start_offsets import (
    MAX_WITHDRAWN,
    Milestones,
    StartOffsets,
    milestones_untrusted,
    owed_from,
    withdrawn_of,
)
from iris.patterns.pubsub.interest.table import InterestTable, OwnInterest, Terms
from iris.patterns.pubsub.interest.topics import (
    Matcher, Shape, check_pattern, check_topic, check_wildcards, is_pattern, is_topic, shape_of,
)  # fmt: skip

__all__ = (
    "MAX_SHARDS", "MAX_WITHDRAWN", "DurableRecord", "DurableSubscriber", "DurableSubscribers", "InterestRetry",
    "InterestTable", "Matcher", "Milestones", "NameId", "OwnInterest", "ServedClusters", "Shape", "ShardMap",
    "ShardMaps", "Share", "StartOffsets", "Terms", "check_pattern", "check_share", "check_topic", "check_wildcards",
    "copies_cluster", "is_pattern", "is_topic", "milestones_untrusted", "owed_from", "primary_cluster",
    "promotion_advice", "shape_of", "stable_hash", "withdrawn_of",
)  # fmt: skip
