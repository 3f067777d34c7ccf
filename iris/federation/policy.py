"""Export and import policy of a gateway: allow-lists of clusters and topics as patterns.

A gateway applies its own lists.  To other realms it applies what the owners of both realms have agreed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol, final

from msgspec import Struct

from iris.cluster.directory import CLUSTER, COMPANION, TOPIC, Export, ExportIndex, ExportTable, SiteDirectory
from iris.kernel.errors import ConfigError, NotSent
from iris.kernel.names import NodeId, qualified, realm_of_site, realm_of_topic
from iris.kernel.wire import Message
from iris.patterns.pubsub.interest import is_pattern, is_topic
from iris.security.identity import NodeIdentity, OtherRealm, covers

_EVERYTHING: Final = (">",)


@final
class Policy(Struct, frozen=True, kw_only=True):
    """Allow-lists.  Patterns are those of topics: ``*`` is one token, a last ``>`` the rest.

    Args:
        exports: clusters of the own site that other sites may use; by default none.
        imports: clusters of other sites that the own site may use, and sites behind it see; by default all.
        export_topics: topics of which events may leave the own site; by default none.  A subscription elsewhere is
            served if all that its pattern matches may leave.
        import_topics: topics of which events may come in; by default all.
        transit: other sites may reach each other through this one.

    Raises:
        ConfigError: something is not a pattern.
    """

    exports: tuple[str, ...] = ()
    imports: tuple[str, ...] = _EVERYTHING
    export_topics: tuple[str, ...] = ()
    import_topics: tuple[str, ...] = _EVERYTHING
    transit: bool = True

    def __post_init__(self) -> None:
        for what in ("exports", "imports", "export_topics", "import_topics"):
            patterns: Iterable[str] = getattr(self, what)
            for pattern in patterns:
                if not (is_pattern(pattern) or is_topic(pattern)):
                    raise ConfigError(
                        f"gateway: {pattern!r} in {what} is not a pattern: use tokens joined by dots, '*' for one, a "
                        "last '>' for the rest"
                    )
                if what in ("exports", "imports") and ("/" in pattern or "@" in pattern):
                    raise ConfigError(
                        f"gateway: {pattern!r} in {what} names no cluster: use the names that clusters have in their "
                        "own realm, with no realm or site"
                    )

    @staticmethod
    def imports_everything() -> tuple[str, ...]:
        """Return the list that lets everything in."""
        return _EVERYTHING

    def may_export(self, cluster: str) -> bool:
        """Return whether other sites may use a cluster of this one."""
        return _allow(self.exports, cluster)

    def may_want(self, pattern: str) -> bool:
        """Return whether a subscription of this site is shown to other sites: all that it matches may come in."""
        return _allow(self.import_topics, pattern)

    def may_import(self, export: Export) -> bool:
        """Return whether something that another site exports is taken."""
        match export.kind:
            case kind if kind == CLUSTER:
                return _allow(self.imports, export.name)
            case kind if kind == TOPIC:
                return _allow(self.export_topics, export.name)
            case _:
                return True


def _allow(patterns: Iterable[str], name: str) -> bool:
    return any(covers(pattern, name) for pattern in patterns)


class HasIdentity(Protocol):
    """The node of a gateway, as far as lists know one."""

    @property
    def identity(self) -> NodeIdentity:
        """The identity of the node now; it may be renewed."""
        ...


@final
class Lists:
    """The lists in force.

    Args:
        policy: the policy of this gateway.
        node: the gateway, and so whom it trusts.
    """

    def __init__(self, policy: Policy, node: HasIdentity) -> None:
        self._policy = policy
        self._node = node
        self._agreed = self._realms()
        self._reaching: dict[tuple[str, NodeId], bool] = {}
        """True for a realm and a node of this site if the realm may reach something that the node serves."""
        self._reaching_for: tuple[int, object] = (-1, None)
        """The exports, and the trusted realms, for which that is so."""

    def _realms(self) -> dict[str, OtherRealm]:
        return {trusted.realm.id: trusted.realm for trusted in self._node.identity.trusted}

    def _have_changed(self) -> bool:
        before, self._agreed = self._agreed, self._realms()
        return before.keys() != self._agreed.keys() or any(
            not realm.means_the_same(before[realm_id]) for realm_id, realm in self._agreed.items()
        )

    def ask_anew(self, directory: SiteDirectory, ask: Callable[[NodeId, Message], None]) -> None:
        """Ask neighbours for all that other realms export if the owners have agreed on something else.

        Advertisements that the former lists refused were dropped, and a neighbour that had the present lists earlier
        does not repeat them.  Call it from time to time.
        """
        for neighbour, question in directory.questions() if self._have_changed() else ():
            try:
                ask(neighbour, question)
            except NotSent:
                self._agreed = {}  # the next time

    def is_exported(self, exported: ExportTable, index: ExportIndex, node: NodeId, site: str) -> bool:
        """Return whether a node of this site serves, or subscribes to, something that another site may use.

        It is asked for each frame that begins a session, with any node's id, for any sender.

        Args:
            exported: exports of this gateway.
            index: the same, by node.
            node: a node of this site.
            site: the other one.
        """
        realm_id = realm_of_site(site)
        realm = self._node.identity.other_realm(realm_id) if realm_id else None
        if realm_id and realm is None:
            return False
        own = exported.origin.site
        if index.subscribes(own, node, realm_id):
            return True
        memberships = index.memberships(own, node)
        if realm is None or not memberships:
            return bool(memberships)
        state = (exported.version, self._node.identity.trusted)
        if self._reaching_for != state:
            self._reaching_for = state
            self._reaching.clear()
        known = self._reaching.get((realm_id, node))
        if known is None:
            known = self._reaching[realm_id, node] = any(realm.may_reach(export.name) for export in memberships)
        return known

    def may_export(self, cluster: str) -> bool:
        """Return whether other sites may use a cluster."""
        return self._policy.may_export(cluster)

    def wanted(self, pattern: str) -> str | None:
        """Return a pattern that is subscribed to here as the directory names it; None if no other site is to know."""
        if not self._policy.may_want(pattern):
            return None
        alias, slash, theirs = pattern.partition("/") if "/" in pattern else ("", "", "")
        realm = self._node.identity.alias(alias) if slash else None
        if realm is None:
            return pattern
        named = qualified(realm.id, theirs)
        return named if realm.may_listen(theirs) and is_pattern(named) else None

    def outward(self, realm_id: str, export: Export) -> Export | None:
        """Return an export of a site as another realm gets it.

        It gets clusters that it may reach, and subscriptions to topics of its own.
        """
        realm = self._node.identity.other_realm(realm_id)
        if realm is None:
            return None
        if export.kind == CLUSTER:
            return export if realm.may_reach(export.name) else None
        theirs = export.name.partition("/")[2]
        listened = realm_of_topic(export.name) == realm_id and realm.may_listen(theirs)
        return export._replace(name=theirs) if listened else None

    def may_import(self, site: str, export: Export) -> bool:
        """Return whether something that a site exports is taken."""
        realm_id = realm_of_site(site)
        if realm_id and export.kind != COMPANION:
            realm = self._node.identity.other_realm(realm_id)
            if realm is None or realm_of_topic(export.name):
                return False
            if not (realm.may_use if export.kind == CLUSTER else realm.may_receive)(export.name):
                return False
        if export.kind == TOPIC and realm_of_topic(export.name):
            return True  # on its way to that realm; no event of this site is meant
        return self._policy.may_import(export)
