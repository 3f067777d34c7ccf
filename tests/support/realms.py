"""Realms for tests: identities with fixed keys, made without files."""

from __future__ import annotations

import random

from iris.kernel.names import Entropy, NodeId
from iris.security.identity.certificate import issue_certificate, issue_delegation, node_digits
from iris.security.identity.identity import NodeIdentity
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from iris.security.noise.handshake_state import KeyPair

WALL = 1_800_000_000.0
DAY = 86_400.0


def seeded_entropy(seed: int) -> Entropy:
    """Return an entropy source that gives the same bytes in every run."""
    return random.Random(seed).randbytes


class TestRealm:
    """A realm whose root key is at hand."""

    __test__ = False

    def __init__(self, seed: int = 0) -> None:
        self.entropy = seeded_entropy(seed)
        self.root = SigningKey(self.entropy(32))
        self.gate = self.entropy(32)

    def identity(self, cluster: str, rights: Rights | None = None) -> NodeIdentity:
        """Return a fresh node that speaks for ``cluster``."""
        cluster_key = SigningKey(self.entropy(32))
        certificate = issue_certificate(
            self.root,
            name=cluster,
            public_key=cluster_key.public,
            generation=1,
            not_before=WALL - DAY,
            not_after=WALL + DAY,
            rights=rights or Rights(),
        )
        static, signing = KeyPair(self.entropy(32)), SigningKey(self.entropy(32))
        node_id = NodeId(node_digits(static.public, signing.public))
        delegation = issue_delegation(
            cluster_key,
            cluster=cluster,
            node=node_id,
            static_key=static.public,
            signing_key=signing.public,
            not_before=WALL - DAY,
            not_after=WALL + DAY,
        )
        return NodeIdentity(
            node_id=node_id,
            realm=self.root.public,
            gate_secrets=(self.gate,),
            certificate=certificate,
            delegation=delegation,
            static=static,
            signing=signing,
        )
