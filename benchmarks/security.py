"""Costs of security: ``python -m benchmarks.security``.  docs/explanation/measured/security.md shows the figures.

``python -m benchmarks.security strangers`` and ``revoked`` are other things: see ``benchmarks.strangers`` and
``benchmarks.revoked``.

Each figure is the processor time of one process, best quarter of many runs: what the code needs, not what else the
machine was doing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Final

import trio
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from benchmarks import revoked, strangers
from iris.kernel.errors import AuthenticationError
from iris.security.authority.issuing import create_realm, issue_cluster
from iris.security.channel.handshake import Initiator, Responder
from iris.security.channel.session import Session
from iris.security.identity import certificate
from iris.security.identity.identity import NodeIdentity
from iris.security.noise.suites import Suite

WALL: Final = 1_800_000_000.0
FRAME: Final = 64 * 1024


def identities() -> tuple[NodeIdentity, NodeIdentity]:
    """Return nodes of two clusters of one realm."""
    realm, orders = issue_cluster(create_realm(os.urandom), "orders", entropy=os.urandom, wall_now=WALL)
    _, billing = issue_cluster(realm, "billing", entropy=os.urandom, wall_now=WALL)
    return orders.new_identity(os.urandom, WALL), billing.new_identity(os.urandom, WALL)


def meet(dialler: NodeIdentity, listener: NodeIdentity, suite: Suite = Suite.AESGCM) -> tuple[Session, Session]:
    """Carry a whole handshake through, both sides in this process."""
    initiator = Initiator(dialler, index=1, hello=b"", entropy=os.urandom, wall_now=WALL, suite=suite)
    responder = Responder(listener, index=2, entropy=os.urandom)
    responder.receive_first_untrusted(initiator.frame)
    dialled = initiator.receive_untrusted(responder.respond(b"", wall_now=WALL), now=0.0, wall_now=WALL)
    assert dialled.frame is not None
    return dialled.session, responder.receive_last_untrusted(dialled.frame, now=0.0, wall_now=WALL).session


def microseconds(*calls: Callable[[], object], runs: int, batch: int) -> list[float]:
    """Return the processor time of each call; they take turns, so that the machine treats them alike."""
    figures: list[list[float]] = [[] for _ in calls]
    gc.collect()
    for _ in range(runs):
        for call, found in zip(calls, figures, strict=True):
            start = time.process_time()
            for _ in range(batch):
                call()
            found.append((time.process_time() - start) / batch * 1e6)
    return [sorted(found)[len(found) // 4] for found in figures]


def measure_handshakes(runs: int) -> dict[str, float]:
    """Both sides together: ML-KEM, six Diffie-Hellman operations, two chains of certificates."""
    dialler, listener = identities()

    def first_meeting() -> None:
        certificate._read_certificate.cache_clear()
        certificate._read_delegation.cache_clear()
        meet(dialler, listener)

    known, first, chacha = microseconds(
        lambda: meet(dialler, listener),
        first_meeting,
        lambda: meet(dialler, listener, Suite.CHACHAPOLY),
        runs=runs,
        batch=10,
    )
    return {
        "handshake, both sides, clusters that met before [us]": known,
        "handshake, both sides, first meeting of both clusters [us]": first,
        "handshake, both sides, ChaChaPoly [us]": chacha,
    }


def measure_junk(runs: int) -> dict[str, float]:
    """A first frame from a peer that does not know the gate secret."""
    dialler, listener = identities()
    frame = bytearray(Initiator(dialler, index=1, hello=b"", entropy=os.urandom, wall_now=WALL).frame)
    frame[-1] ^= 1
    junk = bytes(frame)

    def refuse() -> None:
        try:
            Responder(listener, index=2, entropy=os.urandom).receive_first_untrusted(junk)
        except AuthenticationError:
            return
        raise AssertionError("junk was accepted")

    (cost,) = microseconds(refuse, runs=runs, batch=100)
    return {"junk first frame [us]": cost}


def measure_sessions(runs: int) -> dict[str, float]:
    """Seal and open, beside the bare calls of the cipher."""
    figures: dict[str, float] = {}
    dialler, listener = identities()
    for suite, cipher in ((Suite.AESGCM, AESGCM), (Suite.CHACHAPOLY, ChaCha20Poly1305)):
        near, far = meet(dialler, listener, suite)
        for name, size in (("64 KiB", FRAME), ("100 B", 100)):
            body = os.urandom(size)
            without, together = microseconds(
                partial(call_cipher, cipher(bytes(32)), body),
                partial(call_session, near, far, body),
                runs=runs,
                batch=200,
            )
            figures[f"seal and open {name}, {suite.cipher} [us]"] = together
            figures[f"the same, bare cipher calls, {suite.cipher}, {name} [us]"] = without
            figures[f"beyond the cipher, {suite.cipher}, {name} [us]"] = together - without
    return figures


def call_cipher(aead: AESGCM | ChaCha20Poly1305, body: bytes) -> None:
    """Encrypt and decrypt, without a session."""
    nonce, header = bytes(12), bytes(16)
    aead.decrypt(nonce, aead.encrypt(nonce, body, header), header)


def call_session(near: Session, far: Session, body: bytes) -> None:
    """Seal at one end and open at the other."""
    far.open_untrusted(near.seal(body))


def measure_memory() -> dict[str, float]:
    """Return the memory of a handshake under way and of a session."""
    dialler, listener = identities()
    meet(dialler, listener)
    frames = [Initiator(dialler, index=1, hello=b"", entropy=os.urandom, wall_now=WALL).frame for _ in range(200)]
    gc.collect()
    tracemalloc.start()
    responders: list[Responder] = []
    for index, frame in enumerate(frames, start=1):
        responder = Responder(listener, index=index, entropy=os.urandom)
        responder.receive_first_untrusted(frame)
        responder.respond(b"", wall_now=WALL)
        responders.append(responder)
    half_open = tracemalloc.get_traced_memory()[0] / len(frames)
    tracemalloc.stop()
    return {"memory of a half-open handshake, Python's part [KiB]": half_open / 1024}


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description="What security costs.")
    parser.add_argument("--runs", type=int, default=60, help="more runs, steadier figures")
    parser.add_argument("--json", action="store_true")
    subjects = parser.add_subparsers(dest="subject")
    strangers.add_options(subjects.add_parser("strangers", help="a crowd at the door of a node"))
    revoked.add_options(subjects.add_parser("revoked", help="a node that is cut off by a realm of real processes"))
    options = parser.parse_args()
    if options.subject == "revoked":
        revoked.report(revoked.measure(nodes=options.nodes, processes=options.processes))
        return
    if options.subject == "strangers":
        measured = partial(
            strangers.measure,
            half_open=options.half_open,
            slow=options.slow,
            addresses=options.addresses,
            rate=options.rate,
            scheme=options.scheme,
        )
        strangers.report(trio.run(measured))
        return
    figures = (
        measure_handshakes(options.runs)
        | measure_junk(options.runs)
        | measure_sessions(options.runs)
        | measure_memory()
    )
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, figure in figures.items():
        print(f"{figure:10.1f}  {name}")


if __name__ == "__main__":
    main()
