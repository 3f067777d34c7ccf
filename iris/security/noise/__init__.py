"""The Noise Protocol Framework, revision 34: handshake state, patterns, cipher suites.

It promises that the public test vectors pass, of every pattern.  It is a pure state machine without input or output.
It knows no certificates and does not read payloads (iris.security.channel).
"""

from iris.security.noise.handshake_state import DHLEN, HandshakeState, KeyPair, KnownKeys
from iris.security.noise.suites import Suite, preferred_suite

__all__ = (
    "DHLEN", "HandshakeState", "KeyPair", "KnownKeys", "Suite", "preferred_suite",
)  # fmt: skip
