"""Service discovery: how nodes find each other.  Registry of one machine, mDNS, address book, seeds.

Seeds are addresses, host names, SRV records, a file, and what Kubernetes' API knows (iris.cluster.seed_urls).

It promises that what is found is only an address to dial, never trusted, and that floods cost bounded memory and
dials.  It does not dial or authenticate (iris.cluster.mesh), and knows no members: gossip does (iris.cluster.swim).
mDNS is imported only where it is used.
"""

from iris.cluster.discovery.address_book import AddressBook, AddressFile
from iris.cluster.discovery.contact_search import ContactSearch
from iris.cluster.discovery.discovery import Discovery
from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.mdns import OpenLan, open_lan
from iris.cluster.discovery.registry import Registry
from iris.cluster.discovery.return_address import FindSource, ReturnAddress
from iris.cluster.discovery.seeds import Resolve, Seeds, SeedStatistics, resolve_seed
from iris.cluster.discovery.sources import Sources
from iris.cluster.discovery.srv import check_installed

__all__ = (
    "AddressBook", "AddressFile", "ContactSearch", "Discovery", "FindSource", "LocalNetwork", "OpenLan", "Registry",
    "Resolve", "ReturnAddress", "SeedStatistics", "Seeds", "Sources", "check_installed", "open_lan", "resolve_seed",
)  # fmt: skip
