"""What one gateway lets in and out: its own lists, and for other realms what the owners have agreed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from iris.cluster.site_contents import Contents
from iris.cluster.site_directory import SiteDirectory
from iris.cluster.site_messages import CLUSTER, COMPANION, TOPIC, Export
from iris.federation.policy import Policy
from iris.kernel.errors import NotSent
from iris.kernel.ids import NodeId, qualified, realm_of_site, realm_of_topic
from iris.kernel.wire import Message
from iris.patterns.topics import is_pattern
from iris.security.foreign_realm import ForeignRealm
from iris.security.identity import NodeIdentity


@final
class Lists:
    """The lists in force.

    Args:
        policy: of this gateway.
        identity: returns who the gateway is now, and so whom it trusts.
    """

    def __init__(self, policy: Policy, identity: Callable[[], NodeIdentity]) -> None:
        self._policy = policy
        self._identity = identity
        self._agreed = self._realms()

    def _realms(self) -> dict[str, ForeignRealm]:
        return {trusted.realm.id: trusted.realm for trusted in self._identity().trusted}

    def _have_changed(self) -> bool:
        before, self._agreed = self._agreed, self._realms()
        return before.keys() != self._agreed.keys() or any(
            not realm.means_the_same(before[realm_id]) for realm_id, realm in self._agreed.items()
        )

    def ask_anew(self, directory: SiteDirectory, ask: Callable[[NodeId, Message], None]) -> None:
        """Ask neighbours for all that other realms export if the owners have agreed on something else.

        What was told before was passed over; neighbours that had the lists of today earlier do not tell it again.  Call
        it from time to time.
        """
        for neighbour, question in directory.questions() if self._have_changed() else ():
            try:
                ask(neighbour, question)
            except NotSent:
                self._agreed = {}  # the next time

    def is_exported(self, exported: Contents, node: NodeId, site: str) -> bool:
        """Tell whether a node of this site serves or hears something that another site may use."""
        realm_id = realm_of_site(site)
        realm = self._identity().foreign(realm_id) if realm_id else None
        if realm_id and realm is None:
            return False
        if any(node in nodes for pattern, nodes in exported.topics.items() if realm_of_topic(pattern) == realm_id):
            return True
        return any(node in nodes for name, nodes in exported.clusters.items() if realm is None or realm.may_reach(name))

    def wanted(self, pattern: str) -> str | None:
        """Return a pattern that is subscribed to here as the directory names it; None if no other site is to know."""
        if not self._policy.may_want(pattern):
            return None
        alias, slash, theirs = pattern.partition("/") if "/" in pattern else ("", "", "")
        realm = self._identity().alias(alias) if slash else None
        if realm is None:
            return pattern
        named = qualified(realm.id, theirs)
        return named if realm.may_listen(theirs) and is_pattern(named) else None

    def outward(self, realm_id: str, export: Export) -> Export | None:
        """Return something that a site exports as another realm is told it.

        It is told of clusters that it may reach, and of subscriptions to topics of its own.
        """
        realm = self._identity().foreign(realm_id)
        if realm is None:
            return None
        if export.kind == CLUSTER:
            return export if realm.may_reach(export.name) else None
        theirs = export.name.partition("/")[2]
        listened = realm_of_topic(export.name) == realm_id and realm.may_listen(theirs)
        return export._replace(name=theirs) if listened else None

    def may_import(self, site: str, export: Export) -> bool:
        """Tell whether something that a site exports is taken."""
        realm_id = realm_of_site(site)
        if realm_id and export.kind != COMPANION:
            realm = self._identity().foreign(realm_id)
            if realm is None or realm_of_topic(export.name):
                return False
            if not (realm.may_use if export.kind == CLUSTER else realm.may_hear)(export.name):
                return False
        if export.kind == TOPIC and realm_of_topic(export.name):
            return True  # on its way to that realm; no event of this site is meant
        return self._policy.may_import(export)
