"""Copies of logs, without a network."""

from __future__ import annotations

from iris.spark_bridge.log.replication.journal import LogChange, decode_change_untrusted, encode_head
from iris.spark_bridge.log.store import Store


def travelled(change: LogChange) -> LogChange:
    """Return a change as a copy receives it."""
    head = encode_head(change.head)
    return decode_change_untrusted(head + b"".join(change.data), len(head))


def catch_up(primary: Store, copy: Store, *, forks: dict[int, int] | None = None, steps: int | None = None) -> int:
    """Let a copy become as its primary is, through pieces; return the number of its last change."""
    cuts = primary.replication.cuts(copy.replication.held(), forks or {})
    copy.replication.repeat([travelled(primary.replication.begin(cuts))], term=1)
    offsets = {cut.shard.number: cut.offset for cut in cuts}
    for number in offsets:
        while True:
            change, offsets[number] = primary.replication.piece(number, offsets[number])
            if change is None:
                break
            if steps is not None:
                if not steps:
                    return 0
                steps -= 1
            copy.replication.repeat([travelled(change)], term=1)
    rest = list(primary.replication.rest(offsets, None))
    for change in rest:
        copy.replication.repeat([travelled(change)], term=1)
    return rest[-1].head.number
