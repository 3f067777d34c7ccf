"""Member records: what a node says about itself, signed by itself, and the rule by which two records merge.

Rules of this file:

- A record is written and signed only by its subject; everybody else passes it on unchanged.
- Each change raises the incarnation.  ``precedes`` is a total order, and merging keeps the greater: therefore any
  order and any repetition of the same records ends in the same view.
- Nothing here knows cryptography: the statement to be signed is built here, the signature is made elsewhere.
"""

from __future__ import annotations

import enum
from typing import Final, final

from msgspec import Struct, structs

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId, is_name
from iris.kernel.wire import kinds, node_of

MAX_RECORD: Final = 16 * 1024
"""Limit on one encoded record in bytes.  One with eight clusters and their certificate chains takes about 5 KiB."""

MAX_ADDRESSES: Final = 16
MAX_ADDRESS: Final = 256
MAX_CLUSTERS: Final = 64

ANNOUNCES: Final = 1
"""How a node deals with interest, by its record: it announces what it publishes on, and passes announcements on."""


@final
class MemberState(enum.IntEnum):
    """The state of a node, as seen here.  At equal incarnation the greater value wins."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


@final
class ClusterEntry(Struct, frozen=True, kw_only=True):
    """A cluster that a node serves.

    ``proof`` is opaque here: the certificate and delegation that allow it; empty if the record's own proof does.
    A draining member takes no new work.
    """

    name: str
    proof: bytes = b""
    draining: bool = False


@final
class NodeRecord(Struct, frozen=True, kw_only=True):
    """A member record: everything that others know about a node, signed by it.

    ``name`` is the cluster that the node speaks for and ``proof`` the chain that says so, with the key that
    ``signature`` was made by.  ``interest_version`` is ``ANNOUNCES``, or 0 of nodes of 0.9.
    """

    node: NodeId
    incarnation: int = 1
    name: str
    proof: bytes = b""
    site: str = ""
    addresses: tuple[str, ...] = ()
    clusters: tuple[ClusterEntry, ...] = ()
    interest_version: int = 0
    leaving: bool = False
    signature: bytes = b""

    @property
    def size(self) -> int:
        """Size on the wire in bytes, rounded up."""
        size = 64 + len(self.name) + len(self.proof) + len(self.site) + len(self.signature)
        for address in self.addresses:
            size += 3 + len(address)
        for entry in self.clusters:
            size += 8 + len(entry.name) + len(entry.proof)
        return size

    def as_update(self) -> kinds.RecordUpdate:
        """Return the form on the wire."""
        return kinds.RecordUpdate(
            bytes.fromhex(self.node),
            self.incarnation,
            self.name,
            self.proof,
            self.site,
            self.addresses,
            tuple(map(structs.astuple, self.clusters)),
            self.interest_version,
            self.leaving,
            self.signature,
        )

    def statement(self) -> bytes:
        """Return the bytes that the subject signs: every field but the signature, each with its length before it."""
        parts: list[bytes] = [
            bytes.fromhex(self.node),
            b"%d" % self.incarnation,
            self.name.encode(),
            self.proof,
            self.site.encode(),
            b"%d" % len(self.addresses),
            *map(str.encode, self.addresses),
            b"%d" % len(self.clusters),
        ]
        for entry in self.clusters:
            parts += (entry.name.encode(), entry.proof, b"1" if entry.draining else b"0")
        parts += (b"%d" % self.interest_version, b"1" if self.leaving else b"0")
        return statement_bytes(b"iris record 1", parts)


def statement_bytes(purpose: bytes, parts: list[bytes]) -> bytes:
    """Return ``parts`` in a form that nothing else can have: no two lists, and no two purposes, collide."""
    return b"".join([purpose, b"\0", *[len(part).to_bytes(4, "big") + part for part in parts]])


def precedes(held: NodeRecord, received: NodeRecord) -> bool:
    """Return whether ``received`` replaces ``held``: a total order, so that everybody ends with the same record.

    Two records of one incarnation with different content come from a subject that contradicts itself (two
    processes with one id); the order of their bytes decides.
    """
    if received.incarnation != held.incarnation:
        return received.incarnation > held.incarnation
    if received.leaving != held.leaving:
        return received.leaving
    return received.statement() > held.statement()


def is_plain(url: str) -> bool:
    """Return whether an address, of whatever form, has printable ASCII characters without blanks only."""
    return url.isascii() and url.isprintable() and " " not in url


def record_untrusted(update: kinds.RecordUpdate) -> NodeRecord:
    """Read a record that a peer sent or passed on.  Its signature is not checked here.

    Raises:
        RemoteProtocolError: a name or an address against the rules, or a record that is too large.
    """
    clusters: dict[str, ClusterEntry] = {}
    for name, proof, draining in update.clusters:
        clusters[name] = ClusterEntry(name=name, proof=proof, draining=draining)
    names = [update.name, *clusters, *([update.site] if update.site else ())]
    if not all(map(is_name, names)) or len(clusters) != len(update.clusters):
        raise RemoteProtocolError("a record has names of a cluster and a site, and lists each cluster once")
    for address in update.addresses:
        if not (0 < len(address) <= MAX_ADDRESS and is_plain(address)):
            raise RemoteProtocolError(f"an address is 1 to {MAX_ADDRESS} printable ASCII characters without blanks")
    record = NodeRecord(
        node=node_of(update.node),
        incarnation=update.incarnation,
        name=update.name,
        proof=update.proof,
        site=update.site,
        addresses=update.addresses,
        clusters=tuple(clusters.values()),
        interest_version=update.interest_version,
        leaving=update.leaving,
        signature=update.signature,
    )
    if record.size > MAX_RECORD:
        raise RemoteProtocolError(f"a record is at most {MAX_RECORD} bytes")
    return record
