"""Routes: connections that are no sockets.  Relayed by a member, reversed, or through gateways.

They promise that each behaves like an outbound connection of the mesh, and that a relay carries ciphertext only.  They
choose no path: the directory of sites and the membership do.
"""

from iris.cluster.routes.copies import (
    ANYBODY, NODE, STALLED, CopyRoute, Targets, copy_message, split_nodes, targets_untrusted,
)  # fmt: skip
from iris.cluster.routes.copies_aside import CopiesAside, Waiting
from iris.cluster.routes.envelope import HOPS_AT, Flows, open_envelope
from iris.cluster.routes.gateway import (
    BUSY, GONE, HOPS, NOT_EXPORTED, NO_CARRIERS, NO_ROUTE, PAUSE, READY, REASONS, Carrier, Carriers, CopyPaths,
    GatewayPaths, GatewayRoute, carrier_of, is_site_url, parse_site_url, realm_of_url, site_url,
)  # fmt: skip
from iris.cluster.routes.relayed import RelayedConnection, is_via_url, parse_via_url, via_url
from iris.cluster.routes.reverse import ReverseConnection, is_reverse_url, is_two_way, token_untrusted

__all__ = (
    "ANYBODY", "BUSY", "Carrier", "Carriers", "CopiesAside", "CopyPaths", "CopyRoute", "Flows", "GONE", "GatewayPaths",
    "GatewayRoute", "HOPS", "HOPS_AT", "NODE", "NOT_EXPORTED", "NO_CARRIERS", "NO_ROUTE", "PAUSE", "READY", "REASONS",
    "RelayedConnection", "ReverseConnection", "STALLED", "Targets", "Waiting", "carrier_of", "copy_message",
    "is_reverse_url", "is_site_url", "is_two_way", "is_via_url", "open_envelope", "parse_site_url", "parse_via_url",
    "realm_of_url", "site_url", "split_nodes", "targets_untrusted", "token_untrusted", "via_url",
)  # fmt: skip
