"""Clusters in one process: nodes on a network in memory, on a virtual clock if you like, with faults on demand.

::

    async def test_orders(autojump_clock):
        async with iris.testing.open_network(seed=1) as network:
            async with network.open_node("orders") as member, network.open_node("shop") as shop:
                async with member.join("orders", service):
                    await shop.wait_for("orders")
                    assert await shop.request("orders", b"status") == b"open"

Everything but the network is the real thing: handshakes, sealed sessions, membership, patterns.  With trio's
``MockClock(autojump_threshold=0)`` hours pass in milliseconds; with the real clock it runs in real time.  What is
random comes from the seed, apart from the scheduling of trio's tasks.

Within the block ``iris.open_node`` opens nodes of this network, too: whole programs can be tested as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, final

import trio
from msgspec import structs

from iris.cluster.mesh import Mesh
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError
from iris.kernel.tasks import protected_context
from iris.kernel.transport import MemoryNetwork
from iris.node.arguments import check_flags, check_lists
from iris.node.environment import Environment
from iris.node.join import read_credential
from iris.node.node import Node
from iris.node.open import OPENER, OpenNode, open_parts
from iris.node.run_guard import check_trio
from iris.security.authority import RealmRoot, distrust_realm, issue_realm_bundle, trust_realm
from iris.security.files import CredentialWatch
from iris.security.identity import GATE_SECRET_SIZE, Credential, RealmBundle, Rights, SigningKey, issue_certificate

T = TypeVar("T")

_YEAR: Final = 366 * 86_400.0
EPOCH: Final = 1_800_000_000.0
"""The date at which every simulated network begins, in seconds since 1970."""


_THREAD: Final = 0.001
"""Seconds that something takes in a thread while a node opens."""

ALL_RIGHTS: Final = Rights(serves=(">",), gateway=True)


def _refuse(**given: bool) -> None:
    """Raise ConfigError for arguments of ``iris.open_node`` that have no meaning in memory."""
    for name, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"{name} has no meaning in a simulation, whose nodes are in memory and find each other: leave it out"
            )


@final
class Network:
    """A realm of its own on a network in memory.  Made by ``open_network``.

    Attributes:
        memory: the network itself: ``partition``, ``heal``, ``crash``, ``latency``, ``loss``.
        root: the key of the realm.
    """

    def __init__(self, memory: MemoryNetwork, seed: int, rights: Rights) -> None:
        self.memory: Final = memory
        self._random = random.Random(f"iris {seed}")
        self.root: Final = SigningKey(self._random.randbytes(32))
        self._owner = RealmRoot(key=self.root, gate_secrets=(self._random.randbytes(GATE_SECRET_SIZE),))
        self._rights = rights
        self._credentials: dict[str, Credential] = {}
        self._meshes: set[Mesh] = set()
        self._began = trio.current_time()
        self.offsets: dict[str, float] = {}
        """Seconds by which the dates of hosts are wrong."""
        self.shares_hosts = False
        """True if a host may have several nodes."""
        self._hosts: list[str] = []
        self._opening: set[str] = set()
        """URLs of nodes that may not listen yet."""
        self._former: set[str] = set()
        """Hosts that were made up: each is one node's only, also when that is gone."""
        self._sites: dict[str, dict[str, str]] = {}
        """Hosts of each site, with the URLs of their nodes."""
        self._is_open = True

    def wall_clock(self, host: str = "") -> float:
        """Return the date on this network, in seconds since 1970; that of a host may be wrong."""
        return EPOCH + trio.current_time() - self._began + self.offsets.get(host, 0.0)

    def credential(self, name: str, rights: Rights | None = None) -> Credential:
        """Return the portable credential of a cluster of this realm.

        Args:
            name: the cluster.
            rights: in its certificate, if it is the first of this name; by default those of the realm.
        """
        known = self._credentials.get(name)
        if known is None:
            key = SigningKey(self._random.randbytes(32))
            certificate = issue_certificate(
                self.root,
                name=name,
                public_key=key.public,
                generation=1,
                not_before=EPOCH - _YEAR,
                not_after=EPOCH + _YEAR,
                rights=self._rights if rights is None else rights,
            )
            known = self._credentials[name] = Credential(
                realm=self.root.public,
                gate_secrets=self._owner.gate_secrets,
                certificate=certificate,
                keys=key,
                trusted=self._owner.trusted,
            )
        return known

    def other_realm(self, seed: int, rights: Rights = ALL_RIGHTS) -> Network:
        """Return another realm on this network: another owner, with hosts, nodes and sites of its own."""
        return Network(self.memory, seed, rights)

    def bundle(self, name: str, *exports: str, topics: tuple[str, ...] = (), lifetime: float = _YEAR) -> RealmBundle:
        """Return what other realms get to know of this one; see ``iris keys bundle``."""
        self._owner, bundle = issue_realm_bundle(
            self._owner, name, exports=exports, topics=topics, wall_now=self.wall_clock(), lifetime=lifetime
        )
        self._refresh()
        return bundle

    def trust(
        self,
        bundle: RealmBundle,
        alias: str | None = None,
        *,
        imports: tuple[str, ...] | None = None,
        callers: tuple[str, ...] | None = None,
        import_topics: tuple[str, ...] | None = None,
    ) -> None:
        """Have all nodes of this realm, at once, trust the one that a bundle is of; see ``iris keys trust``."""
        self._owner = trust_realm(
            self._owner,
            bundle,
            wall_now=self.wall_clock(),
            alias=alias,
            imports=imports,
            callers=callers,
            import_topics=import_topics,
        )
        self._refresh()

    def distrust(self, alias: str) -> None:
        """Have them trust it no more."""
        self._owner = distrust_realm(self._owner, alias)
        self._refresh()

    def _refresh(self) -> None:
        for name, credential in self._credentials.items():
            self._credentials[name] = structs.replace(credential, trusted=self._owner.trusted)
        for mesh in self._meshes:
            self._refresh_mesh(mesh)

    def _refresh_mesh(self, mesh: Mesh) -> None:
        mesh.renew_identity(dataclasses.replace(mesh.identity, trusted=self._owner.trusted))

    def _is_taken(self, url: str) -> bool:
        return url in self._opening or self.memory.find(url) is not None

    @staticmethod
    async def _in_thread(call: Callable[[], T], /) -> T:
        """Run a call as in a thread: other tasks run meanwhile, and on a virtual clock it takes time."""
        await trio.sleep(_THREAD)
        return call()

    @protected_context
    async def open_node(
        self,
        name: str = "local",
        *,
        host: str | None = None,
        seeds: Iterable[str] | None = None,
        site: str | None = None,
        prefer_site: str | Mapping[str, int] | None = None,
        config: Config | None = None,
        revocations: Path | None = None,
        operators: bool = True,
        client: bool = False,
        dial_only: bool = False,
        dial_networks: Iterable[str] = (),
    ) -> AsyncIterator[Node]:
        """Bring a node up, as ``iris.open_node`` does.

        Args:
            name: the cluster that it speaks for.
            host: the node's place on the network, for ``partition`` and ``crash``; by default one of its own.
            seeds: hosts to join through; by default every host that has a node of the same site.
            site: see ``iris.open_node``.
            prefer_site: see ``iris.open_node``.
            config: see ``iris.open_node``.
            revocations: see ``iris.open_node``; by default lists are kept in memory only.
            operators: see ``iris.open_node``.
            client: see ``iris.open_node``.
            dial_only: see ``iris.open_node``.
            dial_networks: see ``iris.open_node``; a host whose name is no IP address is in none, and always dialled.
        """
        async with self.open_parts(
            name,
            host=host,
            seeds=seeds,
            site=site,
            prefer_site=prefer_site,
            config=config,
            revocations=revocations,
            operators=operators,
            client=client,
            dial_only=dial_only,
            dial_networks=dial_networks,
        ) as opened:
            yield opened.node

    @protected_context
    async def open_parts(
        self,
        name: str = "local",
        *,
        host: str | None = None,
        seeds: Iterable[str] | None = None,
        site: str | None = None,
        prefer_site: str | Mapping[str, int] | None = None,
        config: Config | None = None,
        revocations: Path | None = None,
        operators: bool = True,
        client: bool = False,
        dial_only: bool = False,
        dial_networks: Iterable[str] = (),
    ) -> AsyncIterator[OpenNode]:
        """Bring a node up as ``open_node`` does, and hand over what it is made of: for tests of Iris itself."""
        if not host:
            taken = {*self._hosts, *self._former}
            host = next(itertools.filterfalse(taken.__contains__, map("host-{}".format, itertools.count(1))))
            self._former.add(host)
        place = host
        if host in self._hosts:
            if not self.shares_hosts:
                raise ConfigError(f"there is a node on host {host!r} already")
            others = (f"{host}:{number}" for number in itertools.count(2))
            place = next(other for other in others if not self._is_taken(_url(other)))
        reached = self._sites.setdefault(site or "", {})
        known = list(filter(self._is_taken, reached.values()))
        environment = Environment(
            transport=lambda _: self.memory.transport(host),
            check_url=str,
            directory=None,
            in_thread=self._in_thread,
            lan=None,
            entropy=self._random.randbytes,
            wall_clock=partial(self.wall_clock, host),
            processor_time=None,  # what is decided by it would differ from run to run
            descriptors=None,  # in memory a link takes none
            watch=None,  # a thread, by the time of this machine
            variables={},
            random=random.Random(self._random.random()),
        )
        credential = self.credential(name)
        self._hosts.append(host)
        self._opening.add(_url(place))
        if not (dial_only or client):
            reached[place] = _url(place)
        try:
            async with open_parts(
                credential=credential,
                listen=[] if dial_only else [_url(place)],
                seeds=known if seeds is None else map(_url, seeds),
                site=site,
                prefer_site=prefer_site,
                config=config,
                revocations=revocations,
                operators=operators,
                client=client,
                dial_only=dial_only,
                dial_networks=dial_networks,
                environment=environment,
            ) as opened:
                self._opening.discard(_url(place))
                mesh = opened.parts.mesh
                self._meshes.add(mesh)
                if mesh.identity.trusted != self._owner.trusted:  # they have changed while it opened
                    self._refresh_mesh(mesh)
                try:
                    yield opened
                finally:
                    self._meshes.remove(mesh)
        finally:
            self._opening.discard(_url(place))
            self._hosts.remove(host)
            reached.pop(place, None)

    @protected_context
    async def open_for_program(
        self,
        name: str | None = None,
        *,
        host: str | None = None,
        credential: Credential | CredentialWatch | Path | str | None = None,
        listen: Iterable[str] = (),
        seeds: Iterable[str] = (),
        site: str | None = None,
        prefer_site: str | Mapping[str, int] | None = None,
        config: Config | None = None,
        revocations: Path | str | None = None,
        lan: bool = True,
        operators: bool = True,
        client: bool = False,
        dial_only: bool = False,
        dial_networks: Iterable[str] = (),
        environment: Environment | None = None,
    ) -> AsyncIterator[OpenNode]:
        """Bring a node up for a program that calls ``iris.open_node``, with its arguments.

        Of a credential only the cluster is taken.

        Raises:
            ConfigError: an argument is given that a network in memory cannot honour, or cannot be used.
            RuntimeError: the block of this network has ended.
        """
        if not self._is_open:
            raise RuntimeError("the network in memory of this test is closed: open nodes within its block")
        check_flags(lan=lan)
        check_lists(listen=listen, seeds=seeds)
        _refuse(
            listen=bool(tuple(listen)),
            seeds=bool(tuple(seeds)),
            revocations=revocations is not None,
            lan=not lan,
            environment=environment is not None,
        )
        if credential is not None:
            given, _ = await read_credential(credential, {})
            name = name if given is None else given.name
        async with self.open_parts(
            name or "local",
            host=host,
            site=site,
            prefer_site=prefer_site,
            config=config,
            operators=operators,
            client=client,
            dial_only=dial_only,
            dial_networks=dial_networks,
        ) as opened:
            yield opened

    @contextmanager
    def serving_programs(self) -> Iterator[None]:
        """Have ``iris.open_node`` open nodes of this network in this block, and in tasks that begin in it."""
        before = OPENER.set(self.open_for_program)
        try:
            yield
        finally:
            with suppress(ValueError):  # a fixture that ends in another context than it began in
                OPENER.reset(before)

    def close(self) -> None:
        """Open no more nodes for programs: one that is left over gets an error, and no node of the user's own."""
        self._is_open = False


def _url(host: str) -> str:
    return f"mem://{host}"


@protected_context
async def open_network(
    *,
    seed: int = 0,
    latency: tuple[float, float] = (0.0001, 0.0005),
    loss: float = 0.0,
    rights: Rights = ALL_RIGHTS,
) -> AsyncIterator[Network]:
    """Make a network in memory with a realm of its own.

    In the block, and in tasks that begin in it, ``iris.open_node`` opens nodes of this network, each on a host of its
    own.  All hosts of a site find each other, so it refuses ``listen``, ``seeds``, ``lan=False``, ``revocations`` and
    ``environment`` with ``ConfigError``.  Of a credential only the cluster is taken.

    Args:
        seed: the seed of everything random.
        latency: least and greatest seconds that a frame takes one way.
        loss: probability from 0 to 1 that a frame vanishes.
        rights: in the certificates of the realm; by default its nodes may join any cluster, as in the local realm.
    """
    check_trio("iris.testing.open_network")
    network = Network(MemoryNetwork(seed=seed, latency=latency, loss=loss), seed, rights)
    try:
        with network.serving_programs():
            yield network
    finally:
        network.close()
    await trio.lowlevel.checkpoint()
