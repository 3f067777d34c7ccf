"""Trio's streams over TLS 1.3 with certificates on both sides, made with the key generation of ``cryptography``."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import ssl
import tempfile
from pathlib import Path

import trio

from benchmarks.system import Roles, System, Task
from benchmarks.systems.trio_stream import ONE_AT_A_TIME, Stream, roles
from iris.bench.workload import Latencies


def _self_signed(directory: Path) -> Path:
    """Write a key and a certificate for loopback into one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "benchmark")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "benchmark.pem"
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + certificate.public_bytes(pem))
    return file


@functools.cache
def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        context.load_cert_chain(_self_signed(Path(directory)))
    return context


def _accepted(stream: Stream) -> Stream:
    return trio.SSLStream(stream, _server_context(), server_side=True)


def _connected(stream: Stream) -> Stream:
    # The certificate is made anew in the other process; in these cases handshakes are not measured.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return trio.SSLStream(stream, context)


def _mutual(purpose: int, pem: str) -> ssl.SSLContext:
    """Return a context whose end shows the certificate in ``pem``, and asks the other end for the same."""
    context = ssl.SSLContext(purpose)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "benchmark.pem"
        file.write_text(pem)
        context.load_cert_chain(file)
        context.load_verify_locations(file)
    return context


async def _handshake_sink(task: Task) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pem = _self_signed(Path(directory)).read_text()
    context = _mutual(ssl.PROTOCOL_TLS_SERVER, pem)

    async def accept(stream: trio.SocketStream) -> None:
        async with trio.SSLStream(stream, context, server_side=True, https_compatible=True) as secured:
            await secured.do_handshake()

    async with trio.open_nursery() as nursery:
        listeners: list[trio.SocketListener] = await nursery.start(trio.serve_tcp, accept, 0)
        task.ready(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}:{pem}")


async def _handshake_source(task: Task) -> None:
    host, port, pem = task.addresses[0].split(":", 2)
    context = _mutual(ssl.PROTOCOL_TLS_CLIENT, pem)
    latencies = Latencies(task)

    async def connect(_: bytes) -> None:
        stream = await trio.open_tcp_stream(host, int(port))
        async with trio.SSLStream(stream, context, https_compatible=True) as secured:
            await secured.do_handshake()
            await secured.receive_some()  # its end shows that the other end has finished, too

    async with trio.open_nursery() as nursery:
        for _ in range(task.case.concurrency):
            nursery.start_soon(latencies.client, connect)
    latencies.finish()


HANDSHAKE = Roles(
    sink=lambda task: trio.run(_handshake_sink, task), source=lambda task: trio.run(_handshake_source, task)
)

SYSTEM = System(
    name="trio TLS",
    package="trio",
    encrypted=True,
    lacks=("retries", "balance", "discovery"),
    module="trio",
    roles={**roles(_accepted, _connected), "handshake": HANDSHAKE},
    without=ONE_AT_A_TIME,
)
