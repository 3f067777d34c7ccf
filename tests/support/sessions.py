"""Handshakes between two identities, without a network."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from iris.kernel.config import Config
from iris.security.channel.handshake import Established, HandshakeRules, Initiator, Responder
from iris.security.channel.session import Session
from iris.security.identity.identity import NodeIdentity, PeerIdentity
from iris.security.noise.suites import Suite
from tests.support.realms import WALL, TestRealm, seeded_entropy

INITIATOR_INDEX = 0x01020304
RESPONDER_INDEX = 0x0A0B0C0D


def held_by(machine: object, kind: type) -> list[Any]:
    """Return what a machine keeps in memory of a kind of object."""
    return [held for held in gc.get_referents(machine) if isinstance(held, kind)]


def start(
    dialler: NodeIdentity,
    listener: NodeIdentity,
    *,
    suite: Suite = Suite.AESGCM,
    hello: bytes = b"from the dialler",
    admit: Callable[[PeerIdentity], None] | None = None,
    config: Config | None = None,
    seed: int = 1,
    realm_id: str = "",
) -> tuple[Initiator, Responder]:
    """Return both sides of a handshake that has not begun."""
    entropy = seeded_entropy(seed)
    rules = HandshakeRules(admit=admit, config=config or Config(), realm_id=realm_id, suite=suite)
    initiator = Initiator(
        dialler,
        index=INITIATOR_INDEX,
        hello=hello,
        entropy=entropy,
        wall_now=WALL,
        rules=rules,
    )
    return initiator, Responder(listener, index=RESPONDER_INDEX, entropy=entropy, rules=rules)


def finish(
    initiator: Initiator, responder: Responder, *, hello: bytes = b"from the listener", now: float = 0.0
) -> tuple[Established, Established]:
    """Carry a handshake through; return what the dialling and the answering side have established."""
    responder.receive_first_untrusted(initiator.frame)
    response = responder.respond(hello, wall_now=WALL)
    dialled = initiator.receive_untrusted(response, now=now, wall_now=WALL)
    assert dialled.frame is not None
    return dialled, responder.receive_last_untrusted(dialled.frame, now=now, wall_now=WALL)


def sessions(
    suite: Suite = Suite.AESGCM, *, config: Config | None = None, seed: int = 1, now: float = 0.0
) -> tuple[Session, Session]:
    """Return the two ends of a fresh session between clusters ``orders`` and ``billing``."""
    realm = TestRealm(seed)
    initiator, responder = start(
        realm.identity("orders"), realm.identity("billing"), suite=suite, config=config, seed=seed
    )
    dialled, answered = finish(initiator, responder, now=now)
    return dialled.session, answered.session
