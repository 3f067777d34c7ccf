"""The Noise Protocol Framework, revision 34: handshake state, patterns, cipher suites.

Promises: the public test vectors pass for every pattern listed here.  A pure state machine without input or output.
Not here: certificates and what a payload says (iris.security.channel).
"""

from iris.security.noise.handshake_state import DHLEN, HandshakeState, KeyPair
from iris.security.noise.suites import Suite, preferred_suite

__all__ = (
    "DHLEN", "HandshakeState", "KeyPair", "Suite", "preferred_suite",
)  # fmt: skip
