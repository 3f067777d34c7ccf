"""Realm-qualified names of sites, translated where two realms meet (a NAT of names).

On a link between gateways of two realms every site has its realm in front.  Inside of a realm its own sites have plain
names, and those of others ``FINGERPRINT/SITE``.  A sender to a gateway of another realm puts its own fingerprint before
its own sites.  The receiver removes it again, and verifies that the neighbour names sites of its own realm only.
Realms do not reach each other through a third one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from iris.cluster.directory import COMPANION, Export, ExportsUpdate, Hop, RouteAdvertisement
from iris.cluster.routes import is_two_way
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.names import is_name, qualified, realm_of_site
from iris.kernel.wire import kinds
from iris.security.identity import NodeIdentity


def outward_site(site: str, own: str) -> str:
    """Return what a site is called on a link to another realm; ``own`` is the fingerprint of the one it leaves."""
    return site if realm_of_site(site) else qualified(own, site)


def outward_route(route: RouteAdvertisement, own: str) -> RouteAdvertisement:
    """Return a route as it is advertised to a gateway of another realm."""
    return RouteAdvertisement(_outward(route.origin, own), tuple(_outward(hop, own) for hop in route.path))


def outward_exports(exports: ExportsUpdate, own: str, outward: Callable[[Export], Export | None]) -> ExportsUpdate:
    """Return a change of exports as it is advertised to a gateway of another realm: with what that may know of.

    ``outward`` returns an export as that realm is sent it, None if it is not.
    """

    def advertised(entries: tuple[Export, ...]) -> tuple[Export, ...]:
        shown = (export if export.kind == COMPANION else outward(export) for export in entries)
        return tuple(export for export in shown if export is not None)

    return exports._replace(
        origin=_outward(exports.origin, own), added=advertised(exports.added), removed=advertised(exports.removed)
    )


T = TypeVar("T", bound=kinds.Message)


def inward_untrusted(message: T, own: str, realm: str) -> T:
    """Return what a gateway of another realm has sent, as it is meant inside of this one.

    Args:
        message: a message that crosses between realms: a frame, a copy, or a report about sites.
        own: fingerprint of this realm.
        realm: fingerprint of the other realm.

    Raises:
        RemoteProtocolError: it is about sites of which that realm has nothing to say.
    """
    match message:
        case kinds.Carried():
            source = qualified(realm, _of(message.source_site, realm))
            return replace(message, site=_of(message.site, own), source_site=source)
        case kinds.Copy():
            targets = tuple((_of(site, own), nodes) for site, nodes in message.targets)
            return replace(message, source_site=qualified(realm, _of(message.source_site, realm)), targets=targets)
        case kinds.Route():
            for site in (message.site, *(site for site, _ in message.path)):
                _of(site, realm)
        case kinds.Exports():
            _of(message.site, realm)
        case kinds.ExportsWanted():
            return replace(message, site=_of(message.site, own))
        case _:
            raise RemoteProtocolError("a message of this kind does not cross between realms")
    return message


def split_peer(peer: str) -> tuple[str, str]:
    """Return the realm and the URL of a gateway to dial, ``REALM/URL`` or ``URL``; no realm is the own one."""
    alias, slash, url = peer.partition("/")
    return (alias, url) if slash and ":" not in alias else ("", peer)


def check_dialled(urls: list[str]) -> None:
    """Raise ConfigError, with why, if a gateway that listens nowhere cannot reach others at these URLs."""
    if not urls:
        raise ConfigError("a gateway that neither listens nor dials reaches nobody: give listen or peers")
    for url in urls:
        if not is_two_way(url):
            raise ConfigError(f"a gateway that listens nowhere reaches others at tcp:// or ws://, which {url} is not")


def trusted_id(identity: NodeIdentity, alias: str) -> str:
    """Return the fingerprint of the realm that is called so here; empty for the own one, which has no alias.

    Raises:
        ConfigError: none is trusted by that name.
    """
    realm = identity.alias(alias) if alias else None
    if alias and realm is None:
        raise ConfigError(
            f"no realm is trusted here by the name of {alias!r}: after 'iris keys trust', refresh the credential"
        )
    return "" if realm is None else realm.id


def _of(site: str, realm: str) -> str:
    """Return the name that a site has in its realm."""
    named, _, name = site.partition("/")
    if named != realm or not is_name(name):
        raise RemoteProtocolError("a site of another realm than that of the gateway that speaks of it")
    return name


def _outward(hop: Hop, own: str) -> Hop:
    return Hop(outward_site(hop.site, own), hop.gateway)
