"""Composition root: from a credential to a node that is up."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import trio

from iris.cluster.address_rules import AddressRules, check_listening
from iris.cluster.addresses import is_loopback, split_url
from iris.cluster.balancing import SiteOrder
from iris.cluster.directory import SiteTag
from iris.cluster.discovery import (
    AddressBook,
    AddressFile,
    ContactSearch,
    Discovery,
    LocalNetwork,
    Registry,
    ReturnAddress,
    Seeds,
    Sources,
)
from iris.cluster.membership import (
    LOCAL_LOOK,
    LOOK,
    Membership,
    ProofVerifier,
    RevocationExchange,
    proof_of,
)  # fmt: skip
from iris.cluster.mesh import Mesh, MeshSetting, open_mesh, own_addresses
from iris.cluster.seed_urls import check_seed
from iris.cluster.swim import ANNOUNCES, NodeRecord
from iris.kernel.config import DEFAULTS, Config
from iris.kernel.errors import ConfigError
from iris.kernel.names import check_name
from iris.kernel.tasks import open_background, protected_context, run_in_thread
from iris.kernel.unexpected import noting_unexpected
from iris.node.arguments import check_flags, check_is, check_lists
from iris.node.build import build_cluster, build_patterns, lay_foundation
from iris.node.descriptors import DescriptorWatch
from iris.node.environment import Environment
from iris.node.join import CREDENTIAL, LISTEN, RENEWAL_MARGIN, SEEDS, Joined, read_credential
from iris.node.meeting_place import MeetingPlace
from iris.node.node import Node
from iris.node.operators import answer_operators
from iris.node.parts import NodeParts
from iris.node.run_guard import check_trio
from iris.security.files import CredentialWatch, load_revocations, open_local_realm, private_home
from iris.security.identity import Credential, NewestRevocations, NodeIdentity

if TYPE_CHECKING:
    from iris.node.telemetry.tracing import Tracing

_log: Final = logging.getLogger("iris")

OPENER: Final[ContextVar[Callable[..., AbstractAsyncContextManager[OpenNode]]]] = ContextVar("OPENER")
"""Opener of nodes in place of ``open_parts``, with its arguments: a simulation, for the programs that run in it."""

DEFAULT_NAME: Final = "local"
"""The cluster of nodes of the local realm that give no name."""

GOODBYE: Final = 0.5
"""Seconds that leaving may take: peers that do not answer find out by themselves."""

_GOODBYE_BOOK: Final = 2.0
"""Seconds that writing down where others were may take: one for its lock, which another process may hold."""

_LOOK: Final = 1.0
"""Seconds between looks whether the credential file was replaced."""

_RENEWAL_CHECK: Final = 60.0


@final
class OpenNode(NamedTuple):
    """A node that is up, and what it is made of."""

    node: Node
    parts: NodeParts


@protected_context
async def open_node(
    name: str | None = None,
    *,
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
) -> AsyncIterator[Node]:
    """Bring a node up, and take it down at the end of the block.

    With no arguments it is a node of the user's own local realm, which is made on first use and reachable on this
    machine only; nodes of one local realm find each other.  With a credential, nodes find each other on this machine,
    on the local network, through seeds, and where others were met before (``addresses`` in ``$IRIS_HOME``).  The block
    is entered when the node is linked to every node of its realm that could be found and answers, and knows what they
    subscribe to; it goes on looking.  Members that say nothing, because of a firewall for one, are waited for until
    none was linked for 2 s, and linked later.  At its end the node says goodbye; that takes a second at most.

    Args:
        name: the cluster that this node speaks for; with a credential it is taken from that.
        credential: a credential, or the path of a credential file (or a ``CredentialWatch``, for a file that is
            wrapped with a passphrase): joins the realm that issued it.  The file is private to this user, or mounted
            as Kubernetes, Docker and systemd mount secrets (docs/reference/credentials.md).  One that is replaced while
            the node runs is taken into use within seconds.  None: the file that
            ``IRIS_CREDENTIAL`` names in the environment (with the passphrase in ``IRIS_PASSPHRASE``, if it is wrapped),
            and if that is not set or empty, the local realm.
        listen: URLs (``tcp://HOST:PORT``, ``ws://HOST:PORT/PATH``, ``ipc:///PATH``); port 0 takes a free one.
            Without any the node opens no port: it dials both directions of each link, to nodes that listen, and with
            others that listen nowhere it speaks through one of those (docs/howto/realms/nat.md).  When it begins to
            serve (``join``, a gateway), it listens where ``IRIS_LISTEN`` says, and if that is not set, at a free port
            of the address from which the others are reached.  When that is another one, as after a change of networks,
            it listens there as well within 2 s, and notifies the others.  On one machine nodes of one user meet by
            sockets in a directory in any case.
        seeds: URLs of nodes to join through, besides those in the credential; without any, those that ``IRIS_SEEDS``
            names, with blanks between them.  A host name stands for all its
            addresses (A, AAAA), looked up anew each time; ``dns+srv://NAME``, ``kubernetes://NAMESPACE/SERVICE`` and
            ``file:///PATH`` name who knows some (docs/howto/operate/seeds.md).  Seeds that do not answer are tried
            again for as long as the node lives.
        site: the node's site.  It links to nodes of the same site only, and reaches other sites through gateways.
        prefer_site: at which site members are asked before all others; or, to order several, a priority from 1 to 16
            for each.  By default the own site has 1 and the others 8.  Of sites with the same priority the nearest
            comes first.  Where work waits for 0.25 s at all members of one site, those of the next are asked, too.
        config: limits and timings.
        revocations: the file of the realm's newest revocation list.  A list that is put there (``iris keys revoke``)
            is in force within seconds, in every node of the realm; an older one is refused.  By default it is
            ``revocations/<fingerprint of the realm>`` in the directory ``$IRIS_HOME``.
        lan: find nodes of the realm on the local network, and be found there (multicast DNS).  Only with a credential,
            and if ``listen`` names an address that others can reach.
        operators: answer nodes that the owner has given the right to ask (``iris top``): counters, latencies, host,
            process and version, docs/howto/operate/look.md.  Clients answer nobody.
        client: be no member: link to one node, and to those that are asked, when they are.  Other nodes do not hear of
            it.  It can request, broadcast, survey, open tunnels, take jobs and consume a bridge's log, at its own site;
            to serve, to publish and to subscribe it has to be a member.  Same encryption and rights.
        dial_only: listen nowhere, not on this machine and not when it serves either: for members behind NAT or a
            firewall.  Only with a credential, and with seeds, because nobody can dial it.
        dial_networks: networks in CIDR notation (``10.0.0.0/8``, ``2001:db8::/32``); the node connects to IP addresses
            in these only, no matter who names them.  By default to any: members tell each other where they are, and a
            stranger with the gate secret says where to answer.
        environment: network, randomness and wall clock, for tests.

    Raises:
        ConfigError: a name, URL or credential file cannot be used, or an address is taken; the message says how to
            mend it.
        RuntimeError: it is called where it cannot run: ``iris.open_node`` is for trio, ``iris.aio.open_node`` for
            asyncio, ``iris.sync.open_node`` for programs without an event loop.

    Cancelling it ends the node in the same way, goodbye included, but does not wait for handlers that still run.
    """
    check_trio()
    opener = OPENER.get(open_parts)
    async with opener(
        name,
        credential=credential,
        listen=listen,
        seeds=seeds,
        site=site,
        prefer_site=prefer_site,
        config=config,
        revocations=revocations,
        lan=lan,
        operators=operators,
        client=client,
        dial_only=dial_only,
        dial_networks=dial_networks,
        environment=environment,
    ) as opened:
        yield opened.node


@protected_context
async def open_parts(
    name: str | None = None,
    *,
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
    """Bring a node up as ``open_node`` does, in a simulation as well, and hand over what it is made of."""
    config = DEFAULTS if config is None else check_is(config, Config, "config")
    environment = environment or Environment()
    check_flags(lan=lan, operators=operators, client=client, dial_only=dial_only)
    check_lists(listen=listen, seeds=seeds, dial_networks=dial_networks)
    if not isinstance(revocations, Path | str | None):
        raise ConfigError(f"revocations is {revocations!r}: use the path of a file")
    listen = tuple(check_listening(environment.check_url(url)) for url in listen)
    given_seeds = tuple(check_seed(seed, environment.check_url) for seed in seeds) or _urls_of(environment, SEEDS)
    networks = tuple(dial_networks)
    AddressRules(networks=networks)  # checks them
    if site is not None:
        check_name(site, "site")
    elif prefer_site is not None:
        raise ConfigError("prefer_site is for a node at a site: give site=, too")
    order = SiteOrder(site or "", prefer_site)
    given, watch = await read_credential(credential, environment.variables)
    local, is_given = given is None, credential is not None
    if dial_only:
        _check_dial_only(local, listen)
    dials_both = not local and not listen
    later: tuple[str, ...] | None = None
    if not (listen or client or dial_only):
        later = _urls_of(environment, LISTEN) or (None if local else ())
    credential = await _credential(name, given, listen or later or (), environment, is_given=is_given)
    urls = tuple(dict.fromkeys((*given_seeds, *credential.seeds)))
    all_seeds = Seeds(urls, environment.resolve, environment.random, environment.wall_clock)
    identity = credential.new_identity(environment.entropy, environment.wall_clock())
    # All that decides who may be linked is there before anybody can dial this node.
    keeps = environment.directory is not None
    path, revoked = await environment.in_thread(partial(_revocations, revocations, credential, keeps=keeps))
    registry: Registry | None = None
    place: MeetingPlace | None = None
    sockets: str | None = None
    if environment.directory is not None and not dial_only:
        make = partial(environment.directory, credential.realm_id)
        directory = await environment.in_thread(make)
        registry = Registry(directory, site or "", environment.random)
        place = MeetingPlace(registry, make, identity.node_id)
        listen = (f"ipc://{directory}/{identity.node_id}", *listen)
        sockets = str(directory)
    transport = environment.transport(config)
    try:
        bound = await (transport.listen(listen) if place is None else place.listen(transport, listen))
        verifier = ProofVerifier(identity, environment.wall_clock, revoked)
        record = _record(identity, site or "", own_addresses(identity.node_id, bound, dials_both=dials_both))
        base = lay_foundation(record, verifier, revoked, environment, config, client=client)
        setting = MeshSetting(
            config=config,
            entropy=environment.entropy,
            wall_clock=environment.wall_clock,
            tag=SiteTag(site=site or "", client=client),
            dials_both=dials_both,
            rules=AddressRules(networks=networks, sockets=sockets),
        )
    except BaseException:
        transport.close()
        raise
    async with (
        _noting_unexpected(),
        _sweeping(registry),
        open_mesh(identity, transport, bound, base.ports, setting) as mesh,
        _open_parts(mesh) as nursery,
    ):
        look = LOCAL_LOOK if local else LOOK
        revoking = RevocationExchange(mesh, credential.realm, revoked, path, nursery, look=look)
        cluster = build_cluster(mesh, base, nursery, order, environment)
        membership, lookups, sites = cluster.membership, cluster.lookups, cluster.sites

        def announce_addresses() -> None:
            membership.renew_addresses(mesh.advertised)
            if place is not None:
                place.move(mesh.advertised)

        reception = ReturnAddress(mesh, transport, all_seeds, environment.source, announce_addresses, later)
        joined = Joined(mesh, membership, revoked, environment, reception)
        revoking.on_newer(joined.renew)
        revoking.on_newer(membership.recheck)
        revoking.on_newer(membership.news)
        if sites is not None:
            revoking.on_newer(sites.changed)
            nursery.start_soon(sites.run)
        tracing: Tracing | None = None
        if "opentelemetry.trace" in sys.modules:  # else the program traces nothing, and it is not to be imported
            from iris.node.telemetry.tracing import Tracing

            tracing = Tracing(mesh.node)
        patterns = build_patterns(
            mesh,
            membership,
            base.pools,
            reach=cluster.reach,
            elsewhere=cluster.elsewhere,
            lookups=lookups,
            environment=environment,
            tracing=tracing,
        )
        pubsub = patterns.pubsub
        parts = NodeParts(
            mesh=mesh,
            transport=transport,
            view=base.view,
            membership=membership,
            sites=sites,
            lookups=lookups,
            reach=cluster.reach,
            revoking=revoking,
            seeds=all_seeds,
            reception=reception,
            joined=joined,
            patterns=patterns,
            environment=environment,
            config=config,
        )
        node = Node(parts, credential)
        revoking.on_newer(pubsub.durable.recheck)
        descriptors = environment.descriptors
        watches = () if descriptors is None else (DescriptorWatch(mesh, descriptors),)
        # Who is notified of a peer, in this order.  Connections through others end first, which others then see; the
        # patterns come last: what they ask of a member that is gone, membership knows by then.
        mesh.observe(
            cluster.forwarder, *watches, revoking, membership, *filter(None, (cluster.idle, sites)), *patterns.observers
        )
        mesh.observe(reception)
        mesh.begin_reading()
        nursery.start_soon(membership.run)
        if cluster.idle is not None:
            nursery.start_soon(cluster.idle.run)
        nursery.start_soon(revoking.run)
        nursery.start_soon(node._run)
        if environment.watch is not None:
            nursery.start_soon(environment.watch, patterns.blocked)
        if not local:
            nursery.start_soon(reception.run)
        if lookups is not None:
            nursery.start_soon(lookups.run)
        elif place is not None:
            place.enter(mesh.advertised)
        book, keeps = AddressBook(), keeps and not local
        read = partial(_address_file, credential.realm_id, book, environment.wall_clock(), keeps=keeps)
        file = await environment.in_thread(read)
        try:
            unseen = local or not lan or dial_only or (client and urls)
            async with _lan(None if unseen else environment, credential, mesh, client=client) as board:
                sources = Sources(all_seeds, registry, board, book)
                discovery: ContactSearch | Discovery
                if client:
                    discovery = ContactSearch(mesh, membership, sources, environment.random)
                    mesh.observe(discovery)
                else:
                    discovery = Discovery(mesh, membership, sources, file=file, announcer=place)
                await discovery.look()
                if mesh.expelled() is None:  # else nobody answers
                    await pubsub.wait_interest_exchanged()
                nursery.start_soon(discovery.run)
                nursery.start_soon(_keep_identity_fresh, credential, watch, mesh, membership, joined, environment)
                answering: trio.CancelScope | None = None
                if operators and not client:
                    answering = await nursery.start(answer_operators, node)
                try:
                    yield OpenNode(node, parts)
                finally:
                    if answering is not None:
                        answering.cancel()
                    node._close()
                if isinstance(discovery, Discovery):
                    discovery.note()
                    with trio.move_on_after(_GOODBYE_BOOK):  # what is not written down costs the memory of addresses
                        await discovery.save()
        finally:
            if place is not None:
                place.leave()
            # Also when the block was cancelled, as Ctrl-C does: peers then learn of a final message and not of a death.
            with trio.CancelScope(shield=True):
                with trio.move_on_after(GOODBYE):
                    await pubsub.wait_copies_sent()
                patterns.books.flush()
                membership.leave()
                await pubsub.publishing.trees.close(GOODBYE)
                await mesh.disconnect_all("the node was closed", GOODBYE)


def _urls_of(environment: Environment, variable: str) -> tuple[str, ...]:
    """Return the URLs in a variable of the environment, with blanks between them."""
    urls = environment.variables.get(variable, "").split()
    try:
        if variable == SEEDS:
            return tuple(check_seed(url, environment.check_url) for url in urls)
        return tuple(check_listening(environment.check_url(url)) for url in urls)
    except ConfigError as error:
        raise ConfigError(f"{variable}: {error}") from None


def _check_dial_only(local: bool, listen: tuple[str, ...]) -> None:
    if local:
        raise ConfigError("dial_only needs a credential: the nodes of the local realm are all on this machine")
    if listen:
        raise ConfigError(f"a node that only dials out cannot listen at {listen[0]}: give listen or dial_only")


@asynccontextmanager
async def _noting_unexpected() -> AsyncIterator[None]:
    with noting_unexpected():
        yield


@asynccontextmanager
async def _sweeping(registry: Registry | None) -> AsyncIterator[None]:
    """Leave no empty directory behind for a realm that has no nodes on this machine any more."""
    try:
        yield
    finally:
        if registry is not None:
            registry.sweep()


@asynccontextmanager
async def _open_parts(mesh: Mesh) -> AsyncIterator[trio.Nursery]:
    """Open the nursery of what is built on a mesh.  Before it ends, the mesh stops dispatching messages."""
    async with open_background() as nursery:
        try:
            yield nursery
        finally:
            mesh.stop_receiving()


def _revocations(
    given: Path | str | None, credential: Credential, *, keeps: bool
) -> tuple[Path | None, NewestRevocations]:
    """Return where the realm's revocation list is kept, None for nowhere, and the list that is there."""
    path = None if given is None else Path(given)
    if given is None and keeps:
        try:
            path = private_home("revocations", "revocations") / credential.realm_id
        except ConfigError as error:  # without the list that it has seen, a node would believe an older one
            raise ConfigError(f"{error}; or say with revocations= where the realm's revocation list is kept") from None
    known = None if path is None else load_revocations(path, credential.realm)
    return path, NewestRevocations(credential.realm, known)


def _address_file(fingerprint: str, book: AddressBook, wall_now: float, *, keeps: bool) -> AddressFile | None:
    """Return where the address book is kept, and read it; None: nowhere."""
    if not keeps:
        return None
    try:
        directory = private_home("address book", "addresses")
    except ConfigError as error:
        _log.warning("%s; where nodes are is not remembered", error, extra={"reason": "address book"})
        return None
    file = AddressFile(directory / f"{fingerprint}.json")
    file.load(book, wall_now)
    return file


def _lan(
    environment: Environment | None, credential: Credential, mesh: Mesh, *, client: bool
) -> AbstractAsyncContextManager[LocalNetwork | None]:
    """Open the notice board of the local network, if there is a network and it is wanted.  Clients only read it."""
    outside = tuple(url for url in mesh.advertised if split_url(url) is not None and not is_loopback(url))
    if environment is None or environment.lan is None or not outside:
        return nullcontext()
    return environment.lan(credential.realm_id, environment.entropy(4).hex(), () if client else outside)


async def _credential(
    name: str | None,
    given: Credential | None,
    listen: tuple[str, ...],
    environment: Environment,
    *,
    is_given: bool,
) -> Credential:
    if given is None:
        outside = [url for url in listen if not is_loopback(url)]
        if outside:
            raise ConfigError(
                f"the local realm is for this machine only and cannot listen at {outside[0]}: use a loopback address, "
                "or a credential ('iris keys')"
            )
        realm = await environment.in_thread(partial(open_local_realm, entropy=environment.entropy))
        wanted = check_name(name, "cluster") if name is not None else DEFAULT_NAME
        return await environment.in_thread(partial(realm.credential, wanted, wall_now=environment.wall_clock()))
    if name is not None and name != given.name:
        raise ConfigError(
            f"the credential is for the cluster {given.name!r} and not for {name!r}: leave the name out"
            f"{'' if is_given else f', or unset {CREDENTIAL}, which names it'}"
        )
    return given


def _record(identity: NodeIdentity, site: str, addresses: tuple[str, ...]) -> NodeRecord:
    return NodeRecord(
        node=identity.node_id,
        name=identity.cluster,
        proof=proof_of(identity.certificate, identity.delegation),
        site=site,
        addresses=addresses,
        interest_version=ANNOUNCES,
    )


async def _keep_identity_fresh(
    credential: Credential,
    watch: CredentialWatch | None,
    mesh: Mesh,
    membership: Membership,
    joined: Joined,
    environment: Environment,
) -> None:
    """Use credential files that were replaced, and renew delegations well before the old ones end."""
    changed, early = False, 0.0
    while True:
        pause = _LOOK if watch is not None or joined.watches else _RENEWAL_CHECK
        await trio.sleep(pause)
        try:
            if watch is not None and await run_in_thread(watch.poll):
                changed = True
            credential = credential if watch is None else watch.credential
            now, ends = environment.wall_clock(), mesh.identity.expires
            due = ends - RENEWAL_MARGIN < now < credential.expires and ends < credential.expires
            # The date was wrong when it was made, or it is wrong now: then peers go on by the one that there is.
            is_early = credential.certificate.not_before <= now < mesh.identity.delegation.not_before
            early = early + pause if is_early else 0.0
            due = due or (early > 0 and not mesh.peers) or early > mesh.config.session_rejected
            if changed or (due and not credential.sealed):
                mesh.renew_identity(credential.renew_identity(mesh.identity, now))
                joined.renew()  # first: a record without a right to what it says it serves would be refused
                membership.renew_proof(proof_of(mesh.identity.certificate, mesh.identity.delegation))
                changed = False
        except ConfigError as error:
            _log.warning(
                "%s; going on with the credential that was read before", error, extra={"cluster": credential.name}
            )
        await joined.poll()
        joined.renew()
