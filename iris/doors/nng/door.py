"""The door: its sockets and what is done at each, from the opening to the end."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, final

import iris.aio
from iris.doors.bounds import whole
from iris.doors.clients import Clients
from iris.doors.closing import to_the_end
from iris.doors.nng.answering import Answering
from iris.doors.nng.asking import Asking
from iris.doors.nng.counters import NngStatistics, keep_running
from iris.doors.nng.events import Following, Taking, end_stalled
from iris.doors.nng.messages import MAX_LINE
from iris.doors.nng.serving import Serving
from iris.doors.nng.sockets import PUB, PULL, REP, REQ, RESPONDENT, SURVEYOR, Endpoint, Pipe, make_tls
from iris.doors.problems import Problem
from iris.doors.programs import ServedClusters
from iris.doors.reporting import reporting
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError

PROTOCOLS: Final[tuple[str, ...]] = ("req", "surveyor", "push", "sub")
"""Protocols that clients speak, in the order of their ports."""

_SERVING: Final = {"rep": REQ, "respondent": SURVEYOR}
"""Protocols of programs that serve a cluster, and what the door speaks with them."""

_SECURED: Final = re.compile(r"tls\+tcp://(?:[^:/\s]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}\Z")

_LONGEST_PATH: Final = 107
"""Size limit of the path of a Unix socket, in bytes."""


@final
class NngDoor:
    """A door for nng.  Made by ``open_nng_door``."""

    def __init__(self, addresses: Mapping[str, str], endpoints: Mapping[str, Endpoint], counted: NngStatistics) -> None:
        self.addresses: Final = addresses
        """Addresses at which the clients of each protocol connect; the programs of a cluster at ``CLUSTER.rep``."""
        self._endpoints = endpoints
        self._counted = counted

    def statistics(self) -> NngStatistics:
        """Return a snapshot."""
        return dataclasses.replace(
            self._counted,
            refused=self._counted.refused.copy(),
            connections={protocol: endpoint.connections for protocol, endpoint in self._endpoints.items()},
            turned_away=sum(endpoint.turned_away for endpoint in self._endpoints.values()),
            unread=self._endpoints["sub"].unread_now(),
        )


@asynccontextmanager
async def open_nng_door(
    node: iris.aio.Node,
    clients: Clients,
    url: str,
    client_name: str,
    *,
    certificate: Path | None = None,
    private_key: Path | None = None,
    client_ca: Path | None = None,
    serve: Sequence[str] = (),
    clusters: ServedClusters | None = None,
    max_connections: int = 1000,
    max_payload: int = Config().max_payload,
) -> AsyncGenerator[NngDoor]:
    """Let programs that speak nng use a node, for as long as the block lasts.

    Args:
        node: node whose place is lent.
        clients: clients that may use it.
        url: ``ipc:///PATH``: files ``PATH.req``, ``PATH.surveyor``, ``PATH.push`` and ``PATH.sub``, for this user
            alone, and those of ``serve``; or ``tls+tcp://HOST:PORT``: ports from that one on in the order of
            ``addresses``, or any free ones if it is 0.
        client_name: client whose rights all connections have.
        certificate: file in PEM, for TLS: the certificate chain of this door.
        private_key: its key.
        client_ca: authority that signs the certificates of clients, without which nobody is let in.
        serve: clusters that programs serve: a REP at ``PATH.CLUSTER.rep``, a RESPONDENT at ``PATH.CLUSTER.respondent``.
        clusters: clusters that the node serves for programs of other doors as well, which end with the first of these
            doors.  None: this door's own.
        max_connections: connections of each protocol, at a time; further ones are turned away.
        max_payload: bytes of what a client sends, at most those of the node's ``Config``.

    Raises:
        ConfigError: it cannot listen there, files for TLS are missing or cannot be used, there is no such client, it
            may not serve a cluster of ``serve``, or ``max_connections`` or ``max_payload`` is no whole number above 0.

    Leaving the block lets programs finish what they are at, for the node's ``drain_timeout`` at most, also if it is
    cancelled meanwhile.
    """
    max_connections, max_payload = whole(max_connections, "max_connections"), whole(max_payload, "max_payload")
    try:
        client = clients.named(client_name)
        for cluster in serve:
            client.check("serve", cluster)
    except Problem as problem:
        raise ConfigError(f"the door for nng: {problem.detail}") from None
    places = _places(url, serve)
    tls = None
    if url.startswith("tls"):
        if certificate is None or private_key is None or client_ca is None:
            raise ConfigError(f"{url} takes a certificate, its private key and the CA of the clients' certificates")
        tls = make_tls(certificate, private_key, client_ca)

    # Up to twice as much is taken as is let through: who sends too much is told so, by REQ at least.
    opened = partial(
        Endpoint,
        max_received=2 * (max_payload + MAX_LINE),
        max_waiting=clients.limits.bytes,
        max_connections=max_connections,
        strangers=clients.unauthenticated,
        tls=tls,
    )
    counted = NngStatistics()
    asking = Asking(node, clients, client_name, max_payload)
    requests = Answering(opened(REP), counted, asking.request)
    surveys = Answering(opened(RESPONDENT), counted, asking.survey)
    taken, followed = opened(PULL), opened(PUB, beside=Pipe.send_waiting)
    endpoints: dict[str, Endpoint] = dict(
        zip(PROTOCOLS, (requests.endpoint, surveys.endpoint, taken, followed), strict=True)
    )
    taking = Taking(node, clients, client_name, max_payload, taken, counted)
    following = Following(node, clients, client_name, followed, counted)
    works = {
        "requests": requests.run, "surveys": surveys.run, "what is pushed": taking.run,
        "what is followed": following.run,
    }  # fmt: skip
    written = [followed]
    clusters = clusters or ServedClusters(node)
    for cluster in serve:
        for protocol, spoken in _SERVING.items():
            name = f"{cluster}.{protocol}"
            serving = Serving(clusters, cluster, clients, client_name, max_payload, counted)
            endpoints[name] = opened(spoken, beside=serving.keep)
            works[f"what serves at {name}"] = partial(serving.run, endpoints[name])
            written.append(endpoints[name])
    works["the look at who does not read"] = partial(end_stalled, written, counted)
    tasks: list[asyncio.Task[None]] = []

    async def close() -> None:
        await clusters.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for endpoint in endpoints.values():
            await endpoint.close()

    try:
        addresses = {protocol: endpoints[protocol].listen(place) for protocol, place in places.items()}
        tasks += [asyncio.ensure_future(keep_running(what, work)) for what, work in works.items()]
        door = NngDoor(addresses, endpoints, counted)
        with reporting(node, "nng", door.statistics):
            yield door
    finally:
        await to_the_end(close())


def _places(url: str, serve: Sequence[str]) -> dict[str, str]:
    """Return where the sockets listen.

    Raises:
        ConfigError: nobody can listen at such an address, or others would read along.
    """
    names = [*PROTOCOLS, *(f"{cluster}.{protocol}" for cluster in serve for protocol in _SERVING)]
    path = url.removeprefix("ipc://")
    if path != url:
        longest = _LONGEST_PATH - max(map(len, names)) - 1
        if not path.startswith("/") or not path.isprintable() or len(path.encode()) > longest:
            raise ConfigError(f"{url!r}: write ipc:///PATH, with a path of at most {longest} bytes")
        return {name: f"{url}.{name}" for name in names}
    if not _SECURED.match(url):
        raise ConfigError(f"{url!r} is no place for a door for nng: write ipc:///PATH or tls+tcp://HOST:PORT")
    host, _, port = url.rpartition(":")
    first = int(port)
    if first > 65_535 - len(names) + 1:
        raise ConfigError(f"{url!r}: the door has {len(names)} ports, from this one on: it is too high")
    return {name: f"{host}:{first and first + number}" for number, name in enumerate(names)}
