"""Replicas of documents without a network: random edits, and what is in them."""

from __future__ import annotations

import random
from typing import Any

from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedCounter, SharedList, SharedMap, SharedSet, SharedText
from iris.patterns.state.updates import write_vector

EDITS = 9
"""Kinds of edits that ``edit`` makes."""


def replica(number: int, *, max_keys: int = 1000, max_bytes: int = 1_000_000) -> Replica:
    """Return an empty replica."""
    return Replica(number, max_keys=max_keys, max_bytes=max_bytes)


def edit(one: Replica, kind: int, rng: random.Random) -> None:
    """Make one edit of a kind below ``EDITS``; of what is not there nothing is deleted."""
    values, items, text = SharedMap(one, "values"), SharedList(one, "l"), SharedText(one, "t")
    match kind:
        case 0:
            value = rng.choice([1, 1.5, None, "x" * rng.randrange(40), b"q", [1, [2, {"a": "b"}]], True, 2**60])
            values[rng.choice("abc")] = value
        case 1 if len(values):
            del values[rng.choice(sorted(values))]
        case 2:
            SharedCounter(one, "c").add(rng.randrange(-3, 9))
        case 3:
            SharedSet(one, "s").add(rng.choice([1, "x", (1, 2)]))
        case 4:
            SharedSet(one, "s").discard(rng.choice([1, "x", (1, 2)]))
        case 5:
            items.insert(rng.randrange(len(items) + 1), rng.choice([1, "ü", [3]]))
        case 6 if len(items):
            del items[rng.randrange(len(items))]
        case 7:
            text.insert(rng.randrange(len(text) + 1), rng.choice(["a", "bü", "😀x"]))
        case 8 if len(text):
            start = rng.randrange(len(text))
            text.delete(start, rng.randrange(start, len(text) + 1))
        case _:
            pass


def content(one: Replica) -> dict[str, Any]:
    """Return all that a reader sees of a document that ``edit`` has made."""
    return {
        "values": dict(SharedMap(one, "values")),
        "counter": SharedCounter(one, "c").value,
        "set": set(SharedSet(one, "s")),
        "list": list(SharedList(one, "l")),
        "text": str(SharedText(one, "t")),
    }


def give(source: Replica, target: Replica) -> int:
    """Give one replica what another one has and it lacks; return how many bytes that took."""
    if target.covers(source.vector):
        return 0
    update = source.difference(write_vector(target.vector))
    target.apply(update, target.extent_untrusted(update))
    return len(update)
