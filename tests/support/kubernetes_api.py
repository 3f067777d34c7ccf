"""What a pod sees of Kubernetes: the mounted service account, and an API server that knows EndpointSlices.

The server speaks HTTPS with a certificate of a CA of its own, and checks token, path and selector.  Each object is
checked against the schemas of Kubernetes 1.34 before it is served.
"""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from iris.cluster.discovery.kubernetes import Pod

NAMESPACE = "shop"


def endpoint(*addresses: str, ready: bool | None = True, terminating: bool | None = False) -> dict[str, Any]:
    """Return an endpoint as the controller of EndpointSlices writes it."""
    name = f"prices-{addresses[0].rpartition('.')[2]}"
    return {
        "addresses": list(addresses),
        "conditions": {"ready": ready, "serving": ready, "terminating": terminating},
        "hostname": name.replace(":", ""),
        "nodeName": "node-1",
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": name, "uid": "e2f3a4b5-1"},
        "zone": "eu-1a",
    }


def endpoint_slice(
    *endpoints: dict[str, Any],
    service: str = "prices",
    ports: Sequence[tuple[str, int]] = (("iris", 7000), ("metrics", 9464)),
    kind: str = "IPv4",
    name: str = "prices-x7k2p",
) -> dict[str, Any]:
    """Return an EndpointSlice of a Service, which the schemas of Kubernetes take."""
    made = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": service,
                "service.kubernetes.io/headless": "",
            },
            "resourceVersion": "4711",
        },
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": [{"name": one, "port": number, "protocol": "TCP"} for one, number in ports],
    }
    kubernetes_validate.validate(made, "1.34", strict=True)
    return made


class Api:
    """An API server, and the directory that its pods have of it.

    Attributes:
        slices: what there is in the namespace.
        token: the token that it takes; the mounted one is replaced by ``rotate``.
        asked: paths of requests.
        answer: the status and the body of every answer; None: as an API server answers.
        stalls: set, it does not answer before the end of the test.
        trickles: set, its answer has a byte now and then until the end of the test.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.slices: list[dict[str, Any]] = []
        self.token = "token-1"
        self.asked: list[str] = []
        self.answer: tuple[int, bytes] | None = None
        self.stalls = self.trickles = False
        self.ended = threading.Event()
        self.port = 0

    def mount(self, authority: bytes) -> None:
        """Write the volume of a service account, as the kubelet does: links into a folder of the day."""
        (self.directory / "..day-1").mkdir(parents=True)
        (self.directory / "..data").symlink_to("..day-1")
        for name, data in (("token", b"token-1"), ("ca.crt", authority), ("namespace", NAMESPACE.encode())):
            (self.directory / "..day-1" / name).write_bytes(data)
            (self.directory / name).symlink_to(f"..data/{name}")

    def rotate(self, token: str) -> None:
        """Take another token from now on, and mount it in place of the former one."""
        day = self.directory / f"..day-{token}"
        day.mkdir()
        for name in ("token", "ca.crt", "namespace"):
            (day / name).write_bytes((self.directory / name).read_bytes())
        (day / "token").write_text(token)
        self.token = token
        (self.directory / "..next").symlink_to(day.name)
        (self.directory / "..next").rename(self.directory / "..data")

    @property
    def variables(self) -> dict[str, str]:
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    @property
    def pod(self) -> Pod:
        return Pod(directory=self.directory, variables=self.variables)

    def reply(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.asked.append(path)
        if self.answer is not None:
            return self.answer
        if authorization != f"Bearer {self.token}":
            return 401, _status(401, "Unauthorized")
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        if parts.path != f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices":
            return 403, _status(403, "Forbidden")
        (selector,) = query["labelSelector"]
        label, _, value = selector.partition("=")
        found = [one for one in self.slices if one["metadata"]["labels"].get(label) == value]
        items = [{key: value for key, value in one.items() if key not in ("kind", "apiVersion")} for one in found]
        made = {
            "kind": "EndpointSliceList",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": "4712"},
            "items": items,
        }
        return 200, json.dumps(made).encode()


def _status(code: int, reason: str) -> bytes:
    made: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "code": code,
    }
    return json.dumps(made).encode()


def make_authority() -> tuple[bytes, bytes]:
    """Return the certificate of a new CA, and a certificate of it for 127.0.0.1 with its key; as text."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("kubernetes", "apiserver")]
    now = datetime.datetime.now(datetime.UTC)
    made: list[bytes] = []
    for number, key in enumerate(keys):  # without the identifiers of keys, as many clusters have it
        builder = x509.CertificateBuilder().subject_name(names[number]).issuer_name(names[0])
        builder = builder.public_key(key.public_key()).serial_number(number + 1)
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        if number == 0:
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        else:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        made.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made[0], private + made[1]


@contextmanager
def open_api(folder: Path) -> Iterator[Api]:
    """Serve on a free port until the end of the block; ``folder`` is the pod's."""
    authority, own = make_authority()
    api = Api(folder / "serviceaccount")
    api.mount(authority)
    chain = folder / "apiserver.pem"
    chain.write_bytes(own)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if api.stalls:
                api.ended.wait(20)
                return
            if api.trickles:
                while not api.ended.wait(0.05):
                    self.wfile.write(b"x")
                return
            status, body = api.reply(self.path, self.headers["Authorization"])
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its name there
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(
            self, request: object, client_address: object
        ) -> None:  # a client that does not like the certificate hangs up
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        api.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield api
        finally:
            api.ended.set()
            server.shutdown()
            thread.join()
