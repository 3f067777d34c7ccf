"""Secure channel: what two nodes share.  Handshake, sealed session, sender keys, admission of strangers.

It promises that there is no plaintext mode, that a session's counter never repeats under one key (not after a fork
either), and that a stranger costs no Diffie-Hellman before it proves the gate secret.  These are state machines: they
own no connection, no clock and no task.
"""

from iris.security.channel.admission import Admission, UnauthenticatedConnections
from iris.security.channel.handshake import EPHEMERAL, Established, HandshakeRules, Initiator, NotAdmitted, Responder
from iris.security.channel.sender_key import KEY_SIZE, CopyHeader, ReceiverKey, SendingKey, read_copy_header_untrusted
from iris.security.channel.session import Session

__all__ = (
    "EPHEMERAL", "KEY_SIZE", "Admission", "CopyHeader", "Established", "HandshakeRules", "Initiator", "NotAdmitted",
    "ReceiverKey", "Responder", "SendingKey", "Session", "UnauthenticatedConnections", "read_copy_header_untrusted",
)  # fmt: skip
