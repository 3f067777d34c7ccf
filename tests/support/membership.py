"""Membership machines for tests: records that can be told apart, signatures without cryptography."""

from __future__ import annotations

import dataclasses
import hashlib
from random import Random

from iris.cluster.effects import Effect, Send
from iris.cluster.records import NodeRecord
from iris.cluster.swim import Swim
from iris.kernel.config import Config
from iris.kernel.ids import NodeId


def node(number: int) -> NodeId:
    """Return a node id; consecutive numbers fall into different buckets."""
    return NodeId(f"{number % 256:02x}{number:030x}")


class HashTrust:
    """Anybody's signature can be checked; ``as_node`` alone says whose this one makes."""

    def __init__(self, as_node: NodeId) -> None:
        self.as_node = as_node

    def sign(self, statement: bytes) -> bytes:
        return hashlib.blake2b(self.as_node.encode() + statement, digest_size=16).digest()

    def verify(self, record: NodeRecord, statement: bytes, signature: bytes) -> bool:
        return HashTrust(record.node).sign(statement) == signature


def record(number: int, *, incarnation: int = 1, leaving: bool = False, site: str = "") -> NodeRecord:
    """Return a signed record."""
    bare = NodeRecord(node=node(number), name="databases", incarnation=incarnation, leaving=leaving, site=site)
    return dataclasses.replace(bare, signature=HashTrust(bare.node).sign(bare.statement()))


def machine(number: int, *, config: Config | None = None, now: float = 0.0) -> Swim:
    """Return a machine that knows nobody."""
    return Swim(
        record=NodeRecord(node=node(number), name="databases"),
        trust=HashTrust(node(number)),
        config=config or Config(),
        random=Random(number),
        now=now,
    )


def sends(effects: list[Effect], kind: int | None = None) -> list[Send]:
    """Return the messages among the effects, all or those of one kind."""
    return [e for e in effects if isinstance(e, Send) and (kind is None or e.message[0] == kind)]


def near(one: float, other: float, within: float = 1e-6) -> bool:
    """Tell whether two times are the same but for rounding."""
    return abs(one - other) <= within
