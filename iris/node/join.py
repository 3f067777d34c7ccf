"""Joining a cluster: the proof of membership that a node needs, and its renewal.

A node may be a member of clusters other than the one it speaks for: because its own certificate names them, or because
it has a credential of that cluster.  From such a credential it derives a proof, which lasts a day like every
delegation.  ``Joined`` renews the proof in time.  When a node can prove its membership no more, ``Joined`` withdraws it
from the cluster: others would not accept it as a member, so it stops announcing itself as one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, final

from msgspec import structs

from iris.cluster.discovery import ReturnAddress
from iris.cluster.membership import Membership, proof_of, serves_by_right
from iris.cluster.mesh import Mesh
from iris.cluster.swim import ClusterEntry
from iris.kernel.errors import AuthenticationError, ConfigError
from iris.kernel.tasks import run_in_thread
from iris.node.environment import Environment
from iris.patterns.service import Role, Server, ServiceStatistics
from iris.security.files import CredentialWatch
from iris.security.identity import Credential, NewestRevocations, NodeIdentity, PeerIdentity

_log: Final = logging.getLogger("iris")

RENEWAL_MARGIN: Final = 8 * 3600.0
"""A delegation is renewed this many seconds before it ends: a third of its life."""


CREDENTIAL: Final = "IRIS_CREDENTIAL"
SEEDS: Final = "IRIS_SEEDS"
LISTEN: Final = "IRIS_LISTEN"
_WRAPPED: Final = "IRIS_PASSPHRASE"


async def read_credential(
    given: Credential | CredentialWatch | Path | str | None, variables: Mapping[str, str] = MappingProxyType({})
) -> tuple[Credential | None, CredentialWatch | None]:
    """Return the credential that a user has given, and the watch over its file if it is in one.

    Without one it is in the file that the environment names, if it does.

    Raises:
        ConfigError: the file cannot be used, or this is no credential.
    """
    passphrase: str | None = None
    if given is None and variables.get(CREDENTIAL):
        given, passphrase = variables[CREDENTIAL], variables.get(_WRAPPED) or None
    if isinstance(given, Path | str):
        try:
            given = await run_in_thread(partial(CredentialWatch, given, passphrase=passphrase))
        except ValueError:  # a surrogate, or a null byte
            raise ConfigError(f"credential is {str(given)!r}: use the path of a file") from None
    if isinstance(given, CredentialWatch):
        return given.credential, given
    if given is not None and not isinstance(given, Credential):
        kind = type(given).__name__  # and not what it is: the contents of a credential file are secret
        raise ConfigError(f"the credential is of type {kind}: use a Credential, a CredentialWatch or a file's path")
    return given, None


class Serving(Protocol):
    """The handlers of one membership at work."""

    def statistics(self) -> ServiceStatistics:
        """Return a snapshot of the counters."""
        ...

    def resize(self, concurrency: int, weight: int) -> None:
        """Let so many handlers run at the same time from now on, as those of so many members; what runs goes on."""
        ...


@final
class ClusterMembership:
    """This node as a member of a cluster.  Made by ``node.join``."""

    def __init__(self, cluster: str, serving: Serving) -> None:
        self.cluster: Final[str] = cluster
        self._serving = serving

    def statistics(self) -> ServiceStatistics:
        """Return a snapshot of the counters."""
        return self._serving.statistics()


@final
class _Place:
    """One cluster that the node has joined, and its proof of membership."""

    __slots__ = ("credential", "entry", "made_of", "proved", "watch", "withdrawn")

    def __init__(self, cluster: str, credential: Credential | None, watch: CredentialWatch | None) -> None:
        self.entry = ClusterEntry(name=cluster)
        self.credential = credential
        self.watch = watch
        self.made_of: Credential | None = None
        """The credential that the present proof was made of."""
        self.proved: PeerIdentity | None = None
        """The peer that the present proof shows; None if there is none."""
        self.withdrawn = False
        """True while the cluster cannot be served."""

    def is_due(self, now: float, identity: NodeIdentity) -> bool:
        """Return whether a fresh proof is to be made of the credential; not if it would end no later."""
        if self.credential is not self.made_of or self.proved is None or now >= self.proved.expires:
            return True
        if identity.delegation.not_before <= now < self.proved.delegation.not_before:  # made when the date was wrong
            return True
        ends = self.proved.expires
        return now > ends - RENEWAL_MARGIN and ends < self.proved.certificate.not_after


@final
class Joined:
    """The clusters that one node has joined.

    Args:
        revoked: nodes and clusters that are revoked.
        reception: has this node listen before it serves.
    """

    def __init__(
        self,
        mesh: Mesh,
        membership: Membership,
        revoked: NewestRevocations,
        environment: Environment,
        reception: ReturnAddress,
    ) -> None:
        self._reception = reception
        self._mesh = mesh
        self._membership = membership
        self._revoked = revoked
        self._wall_clock = environment.wall_clock
        self._places: dict[str, _Place] = {}
        self.drained: Final[set[str]] = set()
        """The clusters that an operator has drained here."""

    @property
    def watches(self) -> bool:
        """True if a credential file is to be looked at now and then."""
        return any(place.watch is not None for place in self._places.values())

    @asynccontextmanager
    async def open(
        self,
        serving: Server,
        cluster: str,
        role: Role,
        credential: Credential | CredentialWatch | Path | str | None,
    ) -> AsyncIterator[ClusterMembership]:
        """Be a member of a cluster until the block ends; see ``Node.join``."""
        async with serving.serve(cluster, role) as membership:
            try:
                await self._reception.serve()
                await self.enter(cluster, credential)
                yield ClusterMembership(cluster, membership)
                self.drained.discard(cluster)  # it leaves: nobody has it work again
                self.drain(cluster)
                await membership.wait_drained(self._mesh.config.drain_timeout)
            finally:
                self.drained.discard(cluster)
                self.leave(cluster)

    async def enter(self, cluster: str, credential: Credential | CredentialWatch | Path | str | None) -> None:
        """Announce that this node is a member of a cluster.

        Raises:
            ConfigError: it has no right to be one, or the credential cannot be used.
        """
        place = _Place(cluster, *await read_credential(credential))
        self._prove(place)
        self._places[cluster] = place
        self._membership.serve(place.entry)

    def has(self, cluster: str) -> bool:
        """Return whether this node is a member of a cluster, or leaves it just now."""
        return cluster in self._places

    def drain(self, cluster: str, *, draining: bool = True) -> None:
        """Announce that this node takes no new work of a cluster, or that it takes some again."""
        place = self._places[cluster]
        place.entry = structs.replace(place.entry, draining=draining)
        if not place.withdrawn:
            self._membership.serve(place.entry)

    def leave(self, cluster: str) -> None:
        """Announce that this node is no member of a cluster any more."""
        self._places.pop(cluster, None)
        self._membership.stop_serving(cluster)

    async def poll(self) -> None:
        """Read the credential files that were replaced; what cannot be used is logged, and changes nothing."""
        for place in list(self._places.values()):
            if place.watch is not None:
                try:
                    if await run_in_thread(place.watch.poll):
                        place.watch.credential.delegate(self._mesh.identity, self._wall_clock())
                        place.credential = place.watch.credential
                except ConfigError as error:
                    _log.warning(
                        "%s; going on with the credential that was read before",
                        error,
                        extra={"cluster": place.entry.name},
                    )

    def renew(self) -> None:
        """Make fresh proofs where it is time for them; withdraw from what cannot be proved, and come back to it."""
        for place in list(self._places.values()):
            cluster, before = place.entry.name, place.entry
            try:
                self._prove(place)
            except ConfigError as error:
                if not place.withdrawn:
                    _log.warning(
                        "this node is no member of cluster %r for now: %s", cluster, error, extra={"cluster": cluster}
                    )
                    self._membership.stop_serving(cluster)
                place.withdrawn = True
                continue
            if place.withdrawn or place.entry != before:
                place.withdrawn = False
                self._membership.serve(place.entry)

    def _prove(self, place: _Place) -> None:
        """Renew the proof of an entry, if it needs one; raise ConfigError if this node may not serve the cluster."""
        cluster, credential, identity = place.entry.name, place.credential, self._mesh.identity
        now = self._wall_clock()
        if serves_by_right(identity.certificate, cluster):
            if place.proved is None or place.is_due(now, identity):
                place.proved, place.entry = None, structs.replace(place.entry, proof=b"")
            return
        if credential is None:
            raise ConfigError(
                f"this node speaks for the cluster {identity.cluster!r} and has no right to serve {cluster!r}: pass a "
                f"credential of {cluster!r} to join"
            )
        if credential.name != cluster:
            raise ConfigError(f"the credential is for the cluster {credential.name!r} and not for {cluster!r}")
        if place.is_due(now, identity):
            place.proved = None
            delegation = credential.delegate(identity, now)
            place.proved = structs.replace(identity.public(), certificate=credential.certificate, delegation=delegation)
            place.made_of = credential
            place.entry = structs.replace(place.entry, proof=proof_of(credential.certificate, delegation))
        assert place.proved is not None
        try:
            self._revoked.check(place.proved)
        except AuthenticationError as error:
            raise ConfigError(f"{error}; have a new credential issued") from None
