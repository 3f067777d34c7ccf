"""What two nodes share: handshake, sealed session, sender keys, admission of strangers.

Promises: no plaintext mode; a session's counter never repeats under one key, not after a fork either; a stranger costs
no Diffie-Hellman before it proves the gate secret.  State machines: connections are the caller's.
"""

from iris.security.channel.admission import Admission, StrangerConnections
from iris.security.channel.handshake import EPHEMERAL, Established, Initiator, NotAdmitted, Responder
from iris.security.channel.sender_key import KEY_SIZE, CopyHeader, ReceiverKey, SenderKey, read_copy_header_untrusted
from iris.security.channel.session import Session

__all__ = (
    "EPHEMERAL", "KEY_SIZE", "Admission", "CopyHeader", "Established", "Initiator", "NotAdmitted", "ReceiverKey",
    "Responder", "SenderKey", "Session", "StrangerConnections", "read_copy_header_untrusted",
)  # fmt: skip
