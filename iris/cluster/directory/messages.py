"""Route advertisements and exports: what gateways send of sites, as messages.

An *origin* is one gateway of one site.  It numbers the versions of what it exports; whoever passes that on changes
nothing of it.  A *path* names every gateway on the way, so that nobody takes a route that leads through itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from iris.cluster.swim import MAX_PROOF
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId, is_name, is_site
from iris.kernel.topic_syntax import is_pattern
from iris.kernel.wire import (
    ELEMENT,
    MAX_ARRAY,
    Message,
    bytes_untrusted,
    counter_untrusted,
    kinds,
    node_untrusted,
    tuple_untrusted,
)

CLUSTER: Final = 1
TOPIC: Final = 2
COMPANION: Final = 3

MAX_HOPS: Final = 16
"""Gateways on one path.  A ring of 32 sites still reaches its far side."""

IN_ONE_MESSAGE: Final = 512
"""Exports that one message holds at most."""

_MESSAGE_BYTES: Final = 48 * 1024


class Hop(NamedTuple):
    """One gateway of one site.  Also called an origin, where it is the one that a route leads to."""

    site: str
    gateway: NodeId


class Export(NamedTuple):
    """One thing that an origin says of its site.

    Attributes:
        kind: CLUSTER: ``node`` is a member of the cluster ``name``; TOPIC: ``node`` wants events that match the pattern
            ``name``, which has the fingerprint of a realm and ``/`` before it if it is about topics of another one;
            COMPANION: ``node`` is another gateway of the site.
        proof: what shows that the member may serve the cluster; empty if its own certificate does.
    """

    kind: int
    name: str
    node: str
    proof: bytes = b""

    @property
    def size(self) -> int:
        """Bytes on the wire, rounded up."""
        return 32 + len(self.name) + len(self.proof)

    @property
    def weight(self) -> int:
        """Bytes of memory that it takes in a directory, at most.

        Besides its name 690 were measured, with its places in what one neighbour tells and in what is believed, and 105
        in a list of what is to go.
        """
        return 800 + len(self.name) + len(self.proof)


class RouteAdvertisement(NamedTuple):
    """A message ROUTE: how ``origin`` is reached through the sender; an empty path: not at all any more."""

    origin: Hop
    path: tuple[Hop, ...]

    def message(self) -> Message:
        """Return the form on the wire."""
        path = tuple((hop.site, bytes.fromhex(hop.gateway)) for hop in self.path)
        return (kinds.ROUTE, self.origin.site, bytes.fromhex(self.origin.gateway), path)


class ExportsUpdate(NamedTuple):
    """A message EXPORTS: a change of what an origin exports, or a part of one.

    Attributes:
        base: the version that it changes; 0: everything is told anew.
        version: the version that results.
        more: further parts of the same change follow.
    """

    origin: Hop
    base: int
    version: int
    added: tuple[Export, ...]
    removed: tuple[Export, ...]
    more: bool

    def message(self) -> Message:
        """Return the form on the wire."""
        return (
            kinds.EXPORTS,
            self.origin.site,
            bytes.fromhex(self.origin.gateway),
            self.base,
            self.version,
            tuple(_pack(export) for export in self.added),
            tuple(_pack(export) for export in self.removed),
            self.more,
        )


def split_exports(
    origin: Hop, base: int, version: int, added: Iterable[Export], removed: Iterable[Export]
) -> Iterator[ExportsUpdate]:
    """Yield a change in parts that fit into messages."""
    parts = [*_parts(added, gone=False), *_parts(removed, gone=True)] or [((), ())]
    for number, (more, less) in enumerate(parts, 1):
        yield ExportsUpdate(origin, base, version, more, less, number < len(parts))


def wanted(origin: Hop) -> Message:
    """Return the message that asks for everything an origin exports."""
    return (kinds.EXPORTS_WANTED, origin.site, bytes.fromhex(origin.gateway))


def route_untrusted(message: Message) -> RouteAdvertisement:
    """Read a ROUTE.

    Raises:
        RemoteProtocolError: malformed.
    """
    _, site, gateway, path = message
    return RouteAdvertisement(_hop_untrusted(site, gateway), tuple(_hop_untrusted(*hop) for hop in path))


def exports_untrusted(message: Message) -> ExportsUpdate:
    """Read an EXPORTS.

    Raises:
        RemoteProtocolError: malformed.
    """
    _, site, gateway, base, version, added, removed, more = message
    if type(more) is not bool:
        raise RemoteProtocolError("a flag is true or false")
    return ExportsUpdate(
        _hop_untrusted(site, gateway),
        counter_untrusted(base),
        counter_untrusted(version),
        tuple(_export_untrusted(value) for value in tuple_untrusted(added, MAX_ARRAY, "a list of exports")),
        tuple(_export_untrusted(value) for value in tuple_untrusted(removed, MAX_ARRAY, "a list of exports")),
        more,
    )


def wanted_untrusted(message: Message) -> Hop:
    """Read an EXPORTS_WANTED.

    Raises:
        RemoteProtocolError: malformed.
    """
    return _hop_untrusted(message[1], message[2])


def message_size(message: Message) -> int:
    """Return what a message about sites weighs, in bytes, rounded up."""
    if message[0] == kinds.EXPORTS:
        entries: tuple[tuple[int, str, bytes, bytes], ...] = (*message[5], *message[6])
        return 64 + sum(5 * ELEMENT + len(name) + len(proof) for _, name, _, proof in entries)
    return 64 + (48 * len(message[3]) if message[0] == kinds.ROUTE else 0)


def _hop_untrusted(site: object, gateway: object) -> Hop:
    if not isinstance(site, str) or not is_site(site):
        raise RemoteProtocolError("not a site name")
    return Hop(site, node_untrusted(gateway))


def _export_untrusted(value: object) -> Export:
    match tuple_untrusted(value, 4, "an export"):
        case (int() as kind, str() as name, bytes() as node, proof):
            valid = {
                CLUSTER: is_name(name) and len(node) == 16,
                TOPIC: is_pattern(name) and len(node) == 16 and proof == b"",
                COMPANION: not name and len(node) == 16 and proof == b"",
            }
            if valid.get(kind, False):
                return Export(kind, name, node.hex(), bytes_untrusted(proof, MAX_PROOF, "a proof"))
        case _:
            pass
    raise RemoteProtocolError("an export is a kind, a name, a node and a proof")


def _pack(export: Export) -> tuple[int, str, bytes, bytes]:
    return (export.kind, export.name, bytes.fromhex(export.node), export.proof)


def _parts(exports: Iterable[Export], *, gone: bool) -> Iterator[tuple[tuple[Export, ...], tuple[Export, ...]]]:
    part: list[Export] = []
    room = _MESSAGE_BYTES
    for export in exports:
        if part and (len(part) == IN_ONE_MESSAGE or export.size > room):
            yield ((), tuple(part)) if gone else (tuple(part), ())
            part, room = [], _MESSAGE_BYTES
        part.append(export)
        room -= export.size
    if part:
        yield ((), tuple(part)) if gone else (tuple(part), ())
