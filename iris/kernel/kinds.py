"""Every kind of message, with the fields that follow it.  A kind is the first element of each message.

``payload`` is opaque: bytes, or a packed value (see ``iris.kernel.wire``).  ``headers`` is None or a flat tuple
``(name, value, name, value, ...)`` of strings.  Kinds stay below 128, where msgpack spends one byte on them.
"""

from __future__ import annotations

from typing import Final

# Links: 0x01 - 0x0f
PING: Final = 0x01  # (token: int): answered at once; proves that the session works in both directions
PONG: Final = 0x02  # (token: int)
GOODBYE: Final = 0x03  # (reason: str): the sender closes this link on purpose

# Requests: 0x20 - 0x2f
REQUEST: Final = 0x20  # (id: int, cluster: str, operation: str | None, budget_ms: int, flags: int, headers, payload)
REPLY: Final = 0x21  # (id: int, payload)
FAILURE: Final = 0x22  # (id: int, code: str, text: str, retry_after_ms: int)
CANCEL: Final = 0x23  # (id: int): the caller no longer waits

# Broadcast: 0x30 - 0x37
BROADCAST: Final = 0x30  # (cluster: str, headers, payload)

# Publish/subscribe: 0x40 - 0x4f; a pattern's ``terms`` are (pattern: str, group: str | None, durable: bool)
INTEREST: Final = 0x40  # (version: int, whole: bool, added: tuple of terms, removed: tuple of terms)
INTEREST_KNOWN: Final = 0x41  # (version: int): the sender publishes accordingly from here on
EVENTS: Final = 0x42  # (topic: str, sequence: int, confirm: int, group: str | None, headers, key: str | None, payloads)
CONFIRMED: Final = 0x43  # (ranges: tuple of int): first, last, first, last, ... are durable
HOLD: Final = 0x44  # (pattern: str, held: bool): a subscriber with overflow="wait" can take no more for now, or again

# Tunnels: 0x50 - 0x5f.  ``id`` is the opener's count, negative in what the other end sends.
TUNNEL_OPEN: Final = 0x50  # (id: int, cluster: str, operation: str | None, headers, window: int, limit: int)
TUNNEL_ACCEPT: Final = 0x51  # (id: int, window: int, limit: int): window in cost, limit in bytes of one message
TUNNEL_REFUSE: Final = 0x52  # (id: int, code: str, text: str, retry_after_ms: int)
TUNNEL_CHUNK: Final = 0x53  # (id: int, sequence: int, flags: int, data: bytes): flags 1 end of message, 2 packed value
TUNNEL_EOF: Final = 0x54  # (id: int, sequence: int): nothing follows
TUNNEL_ACK: Final = 0x55  # (id: int, received: int, granted: int, sent: int, flags: int): flags 1 answer, 2 resend
TUNNEL_CLOSE: Final = 0x56  # (id: int, code: int, received: int, reason: str): the sender has forgotten the tunnel
