"""Route advertisements and exports: what gateways send of sites, as messages.

An *origin* is one gateway of one site.  It numbers the versions of what it exports; a gateway that passes that on
changes nothing of it.  A *path* names every gateway on the way, so that nobody takes a route that leads through itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId, is_name, is_site
from iris.kernel.topic_syntax import is_pattern
from iris.kernel.wire import ELEMENT, Message, kinds, node_of

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
        proof: the proof that the member may serve the cluster; empty if its own certificate shows it.
    """

    kind: int
    name: str
    node: str
    proof: bytes = b""

    @property
    def size(self) -> int:
        """Size on the wire in bytes, rounded up."""
        return 32 + len(self.name) + len(self.proof)

    @property
    def weight(self) -> int:
        """Memory in bytes that the entry takes in a directory, at most.

        Besides its name 870 were measured, with its places in one neighbour's report, in what is believed and in the
        index of that, and 105 in a list of what is to go.
        """
        return 1000 + len(self.name) + len(self.proof)


class RouteAdvertisement(NamedTuple):
    """The route to ``origin`` through the sender.  An empty path withdraws it."""

    origin: Hop
    path: tuple[Hop, ...]

    def message(self) -> kinds.Route:
        """Return the form on the wire."""
        path = tuple((hop.site, bytes.fromhex(hop.gateway)) for hop in self.path)
        return kinds.Route(self.origin.site, bytes.fromhex(self.origin.gateway), path)


class ExportsUpdate(NamedTuple):
    """A change of what an origin exports, or a part of one.

    Attributes:
        base: the version that it changes; 0: everything is sent anew.
        version: the version that results.
        more: further parts of the same change follow.
    """

    origin: Hop
    base: int
    version: int
    added: tuple[Export, ...]
    removed: tuple[Export, ...]
    more: bool

    def message(self) -> kinds.Exports:
        """Return the form on the wire."""
        return kinds.Exports(
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


def wanted(origin: Hop) -> kinds.ExportsWanted:
    """Return the message that asks for everything an origin exports."""
    return kinds.ExportsWanted(origin.site, bytes.fromhex(origin.gateway))


def route_untrusted(message: kinds.Route) -> RouteAdvertisement:
    """Read a route; raise RemoteProtocolError if it names what is no site."""
    path = tuple(hop_untrusted(site, gateway) for site, gateway in message.path)
    return RouteAdvertisement(hop_untrusted(message.site, message.gateway), path)


def exports_untrusted(message: kinds.Exports) -> ExportsUpdate:
    """Read a change of exports; raise RemoteProtocolError if it names what is no site, cluster or pattern."""
    return ExportsUpdate(
        hop_untrusted(message.site, message.gateway),
        message.base,
        message.version,
        tuple(map(_export_untrusted, message.added)),
        tuple(map(_export_untrusted, message.removed)),
        message.more,
    )


def message_size(message: Message) -> int:
    """Return what a message about sites weighs, in bytes, rounded up."""
    match message:
        case kinds.Exports():
            entries = (*message.added, *message.removed)
            return 64 + sum(5 * ELEMENT + len(one.name) + len(one.proof) for one in entries)
        case kinds.Route():
            return 64 + 64 * len(message.path)
        case _:
            return 64


def hop_untrusted(site: str, gateway: bytes) -> Hop:
    """Return an origin; raise RemoteProtocolError if it is at what is no site."""
    if not is_site(site):
        raise RemoteProtocolError("not a site name")
    return Hop(site, node_of(gateway))


def _export_untrusted(received: kinds.Exported) -> Export:
    kind, name, node, proof = received
    valid = {CLUSTER: is_name(name), TOPIC: is_pattern(name) and not proof, COMPANION: not (name or proof)}
    if not valid[kind]:
        raise RemoteProtocolError("an export has the name of a cluster with a proof, a pattern, or neither")
    return Export(kind, name, node.hex(), proof)


def _pack(export: Export) -> kinds.Exported:
    return kinds.Exported(export.kind, export.name, bytes.fromhex(export.node), export.proof)


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
