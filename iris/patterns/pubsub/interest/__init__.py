"""Who wants what: topics, pattern trie, interest of peers, shards, start offsets.

Promises: one match costs bounded work; interest of one peer takes bounded memory.
"""

from iris.patterns.pubsub.interest.durable_names import DurableRecord, NameId
from iris.patterns.pubsub.interest.durable_subscribers import DurableSubscriber, DurableSubscribers
from iris.patterns.pubsub.interest.retry import InterestRetry
from iris.patterns.pubsub.interest.shards import MAX_SHARDS, ShardMap, ShardMaps, Share, check_share, stable_hash
from iris.patterns.pubsub.interest.start_offsets import Milestones, StartOffsets, milestones_untrusted, owed_from
from iris.patterns.pubsub.interest.table import InterestTable, OwnInterest, Terms
from iris.patterns.pubsub.interest.topics import (
    Matcher, Shape, check_pattern, check_topic, is_pattern, is_topic, shape_of,
)  # fmt: skip

__all__ = (
    "MAX_SHARDS", "DurableRecord", "DurableSubscriber", "DurableSubscribers", "InterestRetry", "InterestTable",
    "Matcher", "Milestones", "NameId", "OwnInterest", "Shape", "ShardMap", "ShardMaps", "Share", "StartOffsets",
    "Terms", "check_pattern", "check_share", "check_topic", "is_pattern", "is_topic", "milestones_untrusted",
    "owed_from", "shape_of", "stable_hash",
)  # fmt: skip
