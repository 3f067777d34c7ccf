"""Service discovery: how nodes find each other.  Registry of one machine, mDNS, seeds and DNS names, address book.

It promises that what is found is only an address to dial, never trusted, and that floods cost bounded memory and
dials.  It does not dial or authenticate (iris.cluster.mesh), and knows no members: gossip does (iris.cluster.swim).
mDNS is imported only where it is used.
"""

from iris.cluster.discovery.address_book import AddressBook, AddressFile
from iris.cluster.discovery.contact_search import ContactSearch
from iris.cluster.discovery.discovery import Discovery
from iris.cluster.discovery.dns import Resolve, resolve_url
from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.mdns import OpenLan, open_lan
from iris.cluster.discovery.registry import Registry
from iris.cluster.discovery.return_address import FindSource, ReturnAddress
from iris.cluster.discovery.sources import Sources

__all__ = (
    "AddressBook", "AddressFile", "ContactSearch", "Discovery", "FindSource", "LocalNetwork", "OpenLan", "Registry",
    "Resolve", "ReturnAddress", "Sources", "open_lan", "resolve_url",
)  # fmt: skip
