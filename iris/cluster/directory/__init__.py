"""Directory of sites: a path-vector table, as in BGP, of which site exports which clusters and topics.

It promises that rings of sites do not loop, that what one neighbour advertises is bounded, and that a withdrawn route
is forgotten everywhere.  It has no input or output: sessions with far nodes are in iris.cluster.sites, gateways in
iris.federation.
"""

from iris.cluster.directory.border import Border
from iris.cluster.directory.directory import (
    RemoteMember, RemoteSubscriber, SiteDirectory, SitePath, TooManyChanges,
)  # fmt: skip
from iris.cluster.directory.export_index import ExportIndex
from iris.cluster.directory.exports import Change, ExportTable
from iris.cluster.directory.messages import (
    CLUSTER, COMPANION, IN_ONE_MESSAGE, MAX_HOPS, TOPIC, Export, ExportsUpdate, Hop, RouteAdvertisement,
    hop_untrusted, message_size,
)  # fmt: skip
from iris.cluster.directory.neighbour_table import MAX_EXPORTS, MAX_ORIGINS, MAX_WEIGHT, UPDATES, UPDATE_RATE
from iris.cluster.directory.site_tag import SiteTag, is_client, is_tag, site_of

__all__ = (
    "CLUSTER", "COMPANION", "IN_ONE_MESSAGE", "MAX_EXPORTS", "MAX_HOPS", "MAX_ORIGINS", "MAX_WEIGHT", "TOPIC",
    "UPDATES", "UPDATE_RATE", "Border", "Change", "Export", "ExportIndex", "ExportTable", "ExportsUpdate", "Hop",
    "RemoteMember", "RemoteSubscriber", "RouteAdvertisement", "SiteDirectory", "SitePath", "SiteTag",
    "TooManyChanges", "hop_untrusted", "is_client", "is_tag", "message_size", "site_of",
)  # fmt: skip
