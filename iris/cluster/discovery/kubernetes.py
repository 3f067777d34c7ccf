"""Endpoints of a Service, asked from Kubernetes' API as its pods do it: EndpointSlices (discovery.k8s.io/v1).

It is one GET, by the standard library in a thread.  A watch would hold a connection of each pod open at the API server,
to learn sooner of members whom gossip reports anyway.  What the pod's service account has on disk is read anew each
time, since the kubelet replaces it: the token lasts an hour.  The token goes to nobody whose certificate is not of the
CA that is mounted beside it.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
import time
from collections.abc import Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, final
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from iris.cluster.addresses import look_up_in_thread
from iris.cluster.discovery.dns import PATIENCE
from iris.cluster.seed_urls import ServiceUrl
from iris.kernel.errors import NotSent
from iris.kernel.numerals import read_port

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_ANSWER: Final = 4 * 1024 * 1024
"""Bytes of an answer: 10,000 endpoints and more."""

_MAX_FILE: Final = 64 * 1024
"""Bytes of a token; a bound on what is read from the service account's directory."""

_CHUNK: Final = 64 * 1024
_SHOWN: Final = 200
"""Characters of what a server said that are repeated in an error."""

_PORT: Final = "iris"
"""Name of the port that is taken where a Service has several, and none is asked for."""


@final
class Pod(Struct, frozen=True, kw_only=True):
    """Access of a pod to the API of Kubernetes."""

    directory: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """Directory in which ``token``, ``ca.crt`` and ``namespace`` are mounted."""
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Environment variables: ``KUBERNETES_SERVICE_HOST`` and ``KUBERNETES_SERVICE_PORT``."""


@final
class _Port(Struct, frozen=True):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None


@final
class _Conditions(Struct, frozen=True):
    terminating: bool | None = None


@final
class _Endpoint(Struct, frozen=True):
    addresses: list[str]
    conditions: _Conditions | None = None


@final
class _Slice(Struct, frozen=True, rename="camel"):
    address_type: str
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


@final
class _Slices(Struct, frozen=True):
    items: list[_Slice] | None


async def ask_kubernetes(seed: str, url: ServiceUrl, pod: Pod | None = None) -> tuple[str, ...]:
    """Return the addresses of the pods behind a Service.

    Pods that are not ready yet are among them, since members that start together need each other before they are;
    those that are about to end are not.

    Raises:
        NotSent: the API does not answer or refuses, or there is no such pod; the message says which.
    """
    return await look_up_in_thread(partial(_ask, seed, url, pod or Pod()), seed)


def _ask(seed: str, url: ServiceUrl, pod: Pod) -> tuple[str, ...]:
    host = pod.variables.get("KUBERNETES_SERVICE_HOST", "")
    port = read_port(pod.variables.get("KUBERNETES_SERVICE_PORT", ""))
    if not host or port is None:
        raise NotSent(f"{seed}: this is no pod of Kubernetes: KUBERNETES_SERVICE_HOST and _PORT are not set")
    namespace = url.namespace or _read(seed, pod, "namespace")
    selector = quote(f"kubernetes.io/service-name={url.service}", safe="")
    # Version 0: from the memory of the API server, at no cost to etcd.
    path = (
        f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
        f"?labelSelector={selector}&resourceVersion=0"
    )
    status, body = _get(seed, pod, host, port, path)
    if status == http.client.FORBIDDEN:
        raise NotSent(f"{seed}: the pod's service account may not list the endpointslices of namespace {namespace}")
    if status == http.client.UNAUTHORIZED:
        raise NotSent(f"{seed}: Kubernetes does not accept the token of the pod's service account")
    if status != http.client.OK:
        raise NotSent(f"{seed}: Kubernetes answers with the status {status}")
    try:
        slices = msgspec.json.decode(body, type=_Slices).items or []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotSent(f"{seed}: the answer of Kubernetes is no list of endpointslices: {error}") from None
    found = _addresses(seed, slices, url.port)
    if not found:
        raise NotSent(f"{seed}: there is no pod behind the Service {url.service} of namespace {namespace}")
    return found


def _addresses(seed: str, slices: list[_Slice], wanted: str) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for one in slices:
        if one.address_type not in ("IPv4", "IPv6") or not one.endpoints:
            continue
        port = _port_of(seed, one.ports or [], wanted)
        for endpoint in one.endpoints:
            if endpoint.conditions is not None and endpoint.conditions.terminating:
                continue
            for text in endpoint.addresses:
                try:
                    address = ipaddress.ip_address(text)
                except ValueError:
                    raise NotSent(f"{seed}: the answer of Kubernetes has an address that is none") from None
                host = f"[{address}]" if address.version == 6 else str(address)
                found[f"tcp://{host}:{port}"] = None
    return tuple(found)


def _port_of(seed: str, ports: list[_Port], wanted: str) -> int:
    number = read_port(wanted)
    if number is not None:
        return number
    usable = {port.name or "": port.port for port in ports if port.port and (port.protocol or "TCP") == "TCP"}
    found = usable.get(wanted or _PORT)
    if found is None and not wanted and len(usable) == 1:
        (found,) = usable.values()
    if found is None or not 0 < found < 65536:
        names = _shown(", ".join(sorted(filter(None, usable)))) or "none with a name"
        raise NotSent(f"{seed}: which port is it? The Service has {names}: write :PORT behind its name")
    return found


def _shown(text: str) -> str:
    """Return what a server said for a line of a log."""
    text = text.strip()
    return (text if text.isprintable() else ascii(text))[:_SHOWN]


@final
class _Hurried(ssl.SSLSocket):
    """Is read until a deadline, and not for as long as there is a byte now and then."""

    until = inf

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(min(left, PATIENCE))
        return super().recv_into(buffer, nbytes, flags)


def _get(seed: str, pod: Pod, host: str, port: int, path: str) -> tuple[int, bytes]:
    """Make one request; no redirection is followed, and no proxy asked."""
    token = _read(seed, pod, "token")
    until = time.monotonic() + PATIENCE
    context = _context(seed, pod)
    connection: http.client.HTTPSConnection | None = None
    try:
        connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
        connection.connect()
        assert isinstance(connection.sock, _Hurried)
        connection.sock.until = until
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
        answer = connection.getresponse()
        body = bytearray()
        while chunk := answer.read1(_CHUNK):
            body += chunk
            if len(body) > MAX_ANSWER:
                raise NotSent(f"{seed}: the answer of Kubernetes has more than {MAX_ANSWER} bytes")
        return answer.status, bytes(body)
    except ssl.SSLCertVerificationError as error:
        raise NotSent(f"{seed}: {host} is not the API server of the pod's cluster: {error.verify_message}") from None
    except TimeoutError:
        raise NotSent(f"{seed}: Kubernetes does not answer at {host} within {PATIENCE:g} s") from None
    except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:  # the last two: no such host, port
        reason = _shown(str(error)) or type(error).__name__
        raise NotSent(f"{seed}: Kubernetes cannot be asked at {_shown(host)}: {reason}") from None
    finally:
        if connection is not None:
            connection.close()


def _context(seed: str, pod: Pod) -> ssl.SSLContext:
    """Return a context that trusts the CA of the pod's cluster, and no other one."""
    try:
        context = ssl.create_default_context(cadata=_read(seed, pod, "ca.crt"))
    except (ssl.SSLError, ValueError) as error:
        raise NotSent(f"{seed}: {pod.directory / 'ca.crt'} is no certificate: {error}") from None
    context.sslsocket_class = _Hurried
    # Python 3.13 refuses CAs without the extensions that RFC 5280 asks for.  Many clusters have such a one.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _read(seed: str, pod: Pod, name: str) -> str:
    """Return what a file of the service account says."""
    path = pod.directory / name
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise NotSent(f"{seed}: {path} cannot be read: {reason}: is a service account mounted?") from None
    if not text or (name != "ca.crt" and not text.isprintable()):
        raise NotSent(f"{seed}: {path} says nothing that can be used")
    return text
