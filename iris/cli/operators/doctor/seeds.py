"""Seeds: whether their names are known, a connection comes about, and a node of the realm answers and reaches back.

The node that asks is an ordinary one.  A node answers a handshake over a connection of its own, so a link that comes up
shows the ports of both ends.
"""

from __future__ import annotations

import errno
import shlex
import socket
from typing import Final, final

import trio
from msgspec import Struct

import iris
from iris.cli.operators.doctor.clock import clock_difference
from iris.cli.operators.doctor.findings import Diagnosis, ok, problem
from iris.cli.operators.doctor.listening import port_of
from iris.cluster.addresses import resolve_host, split_url
from iris.cluster.discovery import Resolve, check_installed
from iris.cluster.mesh import NoWayBack, Peer, TurnedAway
from iris.cluster.seed_urls import SRV, check_seed, place_of, source_of, split_service
from iris.kernel.errors import ConfigError, IrisError, NotSent
from iris.kernel.shapes import is_group
from iris.kernel.transport import Refused, check_url
from iris.security.identity import NodeDelegation, OutOfDate

_PATIENCE: Final = 3.0
"""Seconds that a name, and a connection, may take."""

_STAYS: Final = 3.0
"""Seconds for which a link has to answer: a node that does not accept this one's dates ends it within two."""

_SHOWN: Final = 8
"""Addresses of a source that are named."""

_UNREACHABLE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL})


@final
class Reached(Struct, frozen=True, kw_only=True):
    """The outcome of dialling a node.

    Args:
        delegation: the delegation of the node there, if it has shown one.
        peer: the node, if it is linked and stays so.
        error: why it is not linked; None if it was for a moment.
    """

    delegation: NodeDelegation | None = None
    peer: Peer | None = None
    error: IrisError | None = None


async def ask(seed: str, resolve_seed: Resolve) -> tuple[tuple[str, ...], Diagnosis]:
    """Return the addresses that a source of seeds names, host names among them, and the finding."""
    began = trio.current_time()
    try:
        check_seed(seed)
    except ConfigError as error:
        return (), malformed(error)
    try:
        if source_of(seed) == SRV:
            check_installed(seed)
        found = await resolve_seed(seed)
    except ConfigError as error:
        cause, _, remedy = str(error).rpartition(": ")
        return (), problem("packages-missing", cause, remedy)
    except NotSent as error:
        return (), problem("source-failed", str(error), _how_to_look(seed))
    took, count = (trio.current_time() - began) * 1000, len(found)
    named = "1 address" if count == 1 else f"{count} addresses"
    shown = ", ".join(found[:_SHOWN]) + (", ..." if count > _SHOWN else "")
    return found, ok("source-ok", f"{seed} answered after {took:.0f} ms with {named}: {shown}")


def _how_to_look(seed: str) -> str:
    """Return the command that shows what a source of seeds has."""
    match source_of(seed):
        case "file":
            return f"cat {shlex.quote(place_of(seed))}"
        case "kubernetes":
            url = split_service(seed)
            namespace = f" -n {url.namespace}" if url.namespace else ""
            return f"kubectl{namespace} get endpointslices -l kubernetes.io/service-name={url.service}"
        case _:
            return f"dig +search SRV {place_of(seed)}"


async def resolve(url: str) -> tuple[tuple[str, ...], Diagnosis | None]:
    """Return the addresses that a seed stands for, or what is wrong with its name."""
    try:
        check_url(url)
    except ConfigError as error:
        return (), malformed(error)
    parts = split_url(url)
    if parts is None:
        return (url,), None
    scheme, host, rest = parts
    name = host.strip("[]")
    with trio.move_on_after(_PATIENCE):
        try:
            places = await resolve_host(name, socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
                return (), problem("dns-unknown", f"{url}: the name {name} is not known", f"getent ahosts {name}")
            return (), _unanswered(url, name)
        except (OSError, UnicodeError, RuntimeError) as error:
            return (), problem("dns-unknown", f"{url}: {name} is no name of a host: {error}", f"getent ahosts {name}")
        hosts = [f"[{place[0]!s}]" if family == socket.AF_INET6 else str(place[0]) for family, place in places]
        return tuple(dict.fromkeys(f"{scheme}://{one}{rest}" for one in hosts)), None
    return (), _unanswered(url, name)


def malformed(error: ConfigError) -> Diagnosis:
    """Return the finding for a seed that is no address."""
    return problem("seed-malformed", str(error), "iris doctor --seeds tcp://HOST:PORT")


def _unanswered(url: str, name: str) -> Diagnosis:
    return problem("dns-unanswered", f"{url}: no name server says what {name} is", "cat /etc/resolv.conf")


async def connect(url: str) -> Diagnosis | None:
    """Connect to an address without saying anything; return what is wrong, if anything is."""
    parts = split_url(url)
    if parts is None:
        return None
    host, port = parts[1].strip("[]"), port_of(parts[2])
    there = f"on {host}: iris run MODULE:SERVICE --listen {url}"
    try:
        with trio.fail_after(_PATIENCE):
            stream = await trio.open_tcp_stream(host, port, happy_eyeballs_delay=_PATIENCE)
        await stream.aclose()
    except trio.TooSlowError:
        cause = f"{url}: no answer within {_PATIENCE:g} s: the host is down, or a firewall drops what is sent there"
        return problem("seed-silent", cause, f"on {host}: nft list ruleset")
    except OSError as error:
        reasons = {cause.errno for cause in _causes(error)}
        if errno.ECONNREFUSED in reasons:
            return problem("seed-refused", f"{url}: nobody listens there", there)
        if reasons & _UNREACHABLE:
            return problem("seed-unreachable", f"{url}: there is no way to {host}", f"ip route get {host}")
        return problem("seed-silent", f"{url}: {error}", f"ip route get {host}")
    return None


def _causes(error: BaseException) -> list[OSError]:
    """Return the errors of the system that an attempt to connect has met."""
    found = [error] if isinstance(error, OSError) and error.errno is not None else []
    if is_group(error):
        return [*found, *(one for inner in error.exceptions for one in _causes(inner))]
    return found if error.__cause__ is None else [*found, *_causes(error.__cause__)]


async def reach(node: iris.Node, url: str) -> Reached:
    """Link ``node`` to the one at ``url``, and see whether the link stays."""
    mesh = node._parts.mesh
    try:
        peer = await mesh.connect([url], source="doctor")
    except OutOfDate as error:
        return Reached(delegation=error.document if isinstance(error.document, NodeDelegation) else None, error=error)
    except IrisError as error:
        return Reached(error=error)
    with trio.move_on_after(_STAYS):
        await mesh.barrier(peer.node)
        if peer.node in mesh.peers:
            return Reached(delegation=peer.identity.delegation, peer=peer)
    return Reached(delegation=peer.identity.delegation)


def judge(url: str, reached: Reached, own: tuple[str, ...], wall_now: float, remedy: str) -> Diagnosis:
    """Return what it means that a node was reached, or not.

    Args:
        url: the address that was dialled, and takes connections.
        reached: the outcome of dialling it.
        own: the addresses at which this node listens.
        wall_now: the date.
        remedy: lets others in.
    """
    if (wrong := clock_difference(url, reached.delegation, wall_now)) is not None and wrong.level == "problem":
        return wrong
    if reached.peer is not None:
        identity = reached.peer.identity
        return ok("seed-ok", f"{url}: linked both ways with node {identity.node_id[:8]} of cluster {identity.cluster}")
    match reached.error:
        case NoWayBack():
            where = ", ".join(address for address in own if not address.startswith("ipc:")) or "no address"
            cause = f"{url}: the node there takes connections, and cannot connect back to this one at {where}"
            return problem("listen-unreachable", cause, remedy)
        case TurnedAway():
            cause = (
                f"{url}: the node there is of another realm or protocol version, or this credential has an old gate "
                "secret: compare"
            )
            return problem("seed-realm", cause, "iris keys show CREDENTIAL")
        case Refused():
            return problem("seed-refused", f"{url}: nobody listens there any more", "iris doctor")
        case None:
            cause = f"{url}: the node there ends each link as soon as it is up"
            return problem("seed-unlinked", cause, "on that machine: iris -v nodes")
        case error if str(error).startswith("no answer") or "greet" in str(error):
            cause = f"{url}: what listens there is no node of Iris, or hangs"
            return problem("seed-foreign", cause, _who_listens(url))
        case error:
            return problem("seed-unlinked", f"{url}: {error}", "iris keys show CREDENTIAL")


def _who_listens(url: str) -> str:
    parts = split_url(url)
    return "" if parts is None else f"on {parts[1]}: ss -ltnp 'sport = :{port_of(parts[2])}'"
