"""The door: its four sockets and what is done at each, from the opening to the end."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, final

import iris.aio
from iris.doors.bounds import whole
from iris.doors.clients import Clients
from iris.doors.nng.answering import Answering
from iris.doors.nng.asking import Asking
from iris.doors.nng.counters import NngStatistics, keep_running
from iris.doors.nng.events import Following, Taking
from iris.doors.nng.messages import MAX_LINE
from iris.doors.nng.sockets import PUB, PULL, REP, RESPONDENT, Endpoint, make_tls
from iris.doors.problems import Problem
from iris.doors.reporting import reporting
from iris.kernel.config import Config
from iris.kernel.errors import ConfigError

PROTOCOLS: Final[tuple[str, ...]] = ("req", "surveyor", "push", "sub")
"""Protocols that clients speak, in the order of their ports."""

_SECURED: Final = re.compile(r"tls\+tcp://(?:[^:/\s]+|\[[0-9a-fA-F:.]+\]):\d{1,5}\Z")

_LONGEST_PATH: Final = 107 - len(".surveyor")
"""Size limit of the path of a Unix socket, in bytes, without what is put behind it."""


@final
class NngDoor:
    """A door for nng.  Made by ``open_nng_door``."""

    def __init__(self, addresses: Mapping[str, str], endpoints: Mapping[str, Endpoint], counted: NngStatistics) -> None:
        self.addresses: Final = addresses
        """Addresses at which the clients of each protocol connect."""
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
    max_connections: int = 1000,
    max_payload: int = Config().max_payload,
) -> AsyncGenerator[NngDoor]:
    """Let programs that speak nng use a node, for as long as the block lasts.

    Args:
        node: node whose place is lent.
        clients: clients that may use it.
        url: ``ipc:///PATH``: files ``PATH.req``, ``PATH.surveyor``, ``PATH.push`` and ``PATH.sub``, for this user
            alone; or ``tls+tcp://HOST:PORT``: four ports from that one on, or any free ones if it is 0.
        client_name: client whose rights all connections have.
        certificate: file in PEM, for TLS: the certificate chain of this door.
        private_key: its key.
        client_ca: authority that signs the certificates of clients, without which nobody is let in.
        max_connections: connections of each protocol, at a time; further ones are turned away.
        max_payload: bytes of what a client sends, at most those of the node's ``Config``.

    Raises:
        ConfigError: it cannot listen there, files for TLS are missing or cannot be used, there is no such client, or
            ``max_connections`` or ``max_payload`` is no whole number above 0.
    """
    max_connections, max_payload = whole(max_connections, "max_connections"), whole(max_payload, "max_payload")
    try:
        clients.named(client_name)
    except Problem as problem:
        raise ConfigError(f"the door for nng: {problem.detail}") from None
    places = _places(url)
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
    taken, followed = opened(PULL), opened(PUB)
    endpoints: dict[str, Endpoint] = dict(
        zip(PROTOCOLS, (requests.endpoint, surveys.endpoint, taken, followed), strict=True)
    )
    taking = Taking(node, clients, client_name, max_payload, taken, counted)
    following = Following(node, clients, client_name, followed, counted)
    tasks: list[asyncio.Task[None]] = []
    try:
        addresses = {protocol: endpoints[protocol].listen(place) for protocol, place in places.items()}
        works = {
            "requests": requests.run, "surveys": surveys.run, "what is pushed": taking.run,
            "what is followed": following.run, "the look at who does not read": following.end_stalled,
        }  # fmt: skip
        tasks += [asyncio.ensure_future(keep_running(what, work)) for what, work in works.items()]
        door = NngDoor(addresses, endpoints, counted)
        with reporting(node, "nng", door.statistics):
            yield door
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for endpoint in endpoints.values():
            await endpoint.close()


def _places(url: str) -> dict[str, str]:
    """Return where the sockets listen.

    Raises:
        ConfigError: nobody can listen at such an address, or others would read along.
    """
    path = url.removeprefix("ipc://")
    if path != url:
        if not path.startswith("/") or not path.isprintable() or len(path.encode()) > _LONGEST_PATH:
            raise ConfigError(f"{url!r}: write ipc:///PATH, with a path of at most {_LONGEST_PATH} bytes")
        return {protocol: f"{url}.{protocol}" for protocol in PROTOCOLS}
    if not _SECURED.match(url):
        raise ConfigError(f"{url!r} is no place for a door for nng: write ipc:///PATH or tls+tcp://HOST:PORT")
    host, _, port = url.rpartition(":")
    first = int(port)
    if first > 65_535 - len(PROTOCOLS) + 1:
        raise ConfigError(f"{url!r}: the door has {len(PROTOCOLS)} ports, from this one on: it is too high")
    return {protocol: f"{host}:{first and first + number}" for number, protocol in enumerate(PROTOCOLS)}
