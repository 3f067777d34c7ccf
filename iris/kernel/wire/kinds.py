"""Message kinds: the number of each kind, with the fields that follow it.  A kind is the first element of each message.

``payload`` is opaque: bytes, or a packed value (see ``iris.kernel.wire.payload``).  ``headers`` is None or a flat tuple
``(name, value, name, value, ...)`` of strings.  Kinds stay below 128, where msgpack spends one byte on them.
"""

from __future__ import annotations

from typing import Final

# Links: 0x01 - 0x0f
PING: Final = 0x01  # (token: int): answered at once; proves that the session works in both directions
PONG: Final = 0x02  # (token: int)
GOODBYE: Final = 0x03  # (reason: str): the sender closes this link on purpose
RESET: Final = 0x04  # (): frames between us may have been lost, either way
REVOCATIONS: Final = 0x05  # (signed: bytes): the newest revocation list that the sender has
FORWARD: Final = 0x06  # (target: node, frame: bytes): hand it on; to the target itself: it is for you, from another
FORWARD_REFUSED: Final = 0x07  # (target: node): there is no link to it here

# Membership: 0x10 - 0x1f.  A node is 16 bytes; ``updates`` is a tuple of updates, see ``iris.cluster.swim.gossip``.
PROBE: Final = 0x10  # (sequence: int, state: int, incarnation: int, updates): how the prober sees the receiver
PROBE_ANSWER: Final = 0x11  # (sequence: int, queue_delay_us: int, updates)
PROBE_REQUEST: Final = 0x12  # (sequence: int, node, updates): probe this node for me
PROBE_REPORT: Final = 0x13  # (sequence: int, verdict: int, updates): 0 answered, 1 silent, 2 refused
GOSSIP: Final = 0x14  # (updates)
SYNC: Final = 0x15  # (hashes: bytes): 256 of 8 bytes
DIGEST: Final = 0x16  # (buckets: bytes, entries: bytes): 24 bytes each, node and incarnation
WANTED: Final = 0x17  # (nodes: bytes): send me their records
STATE: Final = 0x18  # (last: bool, updates): part of an answer to JOIN, DIGEST or WANTED
JOIN: Final = 0x19  # (record): send me everybody's

# Requests: 0x20 - 0x2f
# flags of a request: 1 idempotent; bits 1 and 2 priority: 0 normal, 1 high, 2 low; 8 timed
REQUEST: Final = 0x20  # (id: int, cluster: str, operation: str | None, budget_ms: int, flags: int, headers, payload)
REPLY: Final = 0x21  # (id: int, payload)
FAILURE: Final = 0x22  # (id: int, code: str, text: str, retry_after_ms: int)
CANCEL: Final = 0x23  # (id: int): the caller no longer waits
AWAITED: Final = 0x24  # (id: int): frames may be lost, and the caller still waits: say so if it is not here
RUNNING: Final = 0x25  # (id: int): frames may be lost, and the member is still at it: cancel it if nobody waits
TIMED: Final = 0x26  # (id: int, waited_us: int, ran_us: int): of a timed request, before its REPLY or FAILURE

# Broadcast: 0x30 - 0x37
BROADCAST: Final = 0x30  # (cluster: str, headers, payload, position: int)
RELAY: Final = 0x31  # (origin: bytes, number: int, at: int, behind: bytes, body: bytes, signature: bytes): hand it on
RELAYED: Final = 0x32  # (origin: bytes, numbers: tuple of int): number, copies lost, number, copies lost, ... handed on

BROADCAST_CREDIT: Final = 0x33  # (cluster: str, seen: int, queued: int, size: int, refused: int): of the receiver's
BROADCAST_CREDIT_WANTED: Final = 0x34  # (cluster: str, end: int): nothing is on the way before this position: tell me

# Events for groups: 0x38 - 0x3f.  A ledger is a number of the publisher's, for each node.
GROUP_SENT: Final = 0x38  # (ledger: int, sent: int): so many events for groups were sent to the receiver before this
GROUP_SETTLED: Final = 0x39  # (ledger: int, missing: int, settled: int): so many are lost, so many taken or dropped

# Publish/subscribe: 0x40 - 0x4f; a pattern's ``terms`` are (pattern: str, group: str | None, durable, patient, share)
INTEREST: Final = 0x40  # (version: int, whole: bool, added: tuple of terms, removed: tuple of terms)
INTEREST_KNOWN: Final = 0x41  # (version: int, published: int): the sender publishes accordingly from here on
EVENTS: Final = 0x42  # (topic: str, sequence: int, confirm: int, group: str | None, headers, key, payloads, milestones)
CONFIRMED: Final = 0x43  # (ranges: tuple of int): first, last, first, last, ... are durable
HOLD: Final = 0x44  # (pattern: str, held: bool): a subscriber with overflow="wait" can take no more for now, or again
RETAINED: Final = 0x45  # (topic: str, last: int, sequence: int, headers, key, payload, milestones): the value it keeps
RETAINED_WANTED: Final = 0x46  # (pattern: str): send me the values that you keep for topics that match
EVENTS_LOST: Final = 0x47  # (losses: tuple): topic, dropped, refused, topic, ...: events that subscribers did not get
CONFIRM_DELAYED: Final = 0x48  # (reason: str): why the sender does not confirm events for now
EVENT_TREE: Final = 0x49  # (tree: int, place: bytes, children: tuple): node, places, ...: hand my events on to those
EVENT_WAY: Final = 0x4A  # (turn: int, tree: int, wait: bool): my events come over that tree from here on; 0: directly
EVENTS_RELAYED: Final = 0x4B  # (publisher: bytes, tree: int, number: int, places: bytes, body: bytes, signature: bytes)
EVENT_RELAY: Final = 0x4C  # (tree: int, state: int, node): 0 ready, 1 goes on, 2 held up, 3 node cut off, 4 all came
SENDER_KEY: Final = 0x4D  # (number: int, suite: int, key: bytes): of copies of events; none was sealed with it before
SENDER_KEY_WANTED: Final = 0x4E  # (number: int): copies under this key have come, and the key has not
COPIES_LOST: Final = 0x4F  # (): copies of events were lost on their way here

# Tunnels: 0x50 - 0x5f.  ``id`` is the opener's count, negative in what the other end sends.
TUNNEL_OPEN: Final = 0x50  # (id: int, cluster: str, operation: str | None, headers, window: int, limit: int)
TUNNEL_ACCEPT: Final = 0x51  # (id: int, window: int, limit: int): window in cost, limit in bytes of one message
TUNNEL_REFUSE: Final = 0x52  # (id: int, code: str, text: str, retry_after_ms: int)
TUNNEL_CHUNK: Final = 0x53  # (id: int, sequence: int, flags: int, data: bytes, mark: int): flags 1 end, 2 packed value
TUNNEL_EOF: Final = 0x54  # (id: int, sequence: int): nothing follows
TUNNEL_ACK: Final = 0x55  # (id: int, received: int, granted: int, sent: int, flags: int): flags 1 answer, 2 resend
TUNNEL_CLOSE: Final = 0x56  # (id: int, code: int, received: int, reason: str): the sender has forgotten the tunnel
TUNNEL_MARKED: Final = 0x57  # (mark: int): the mark of a chunk, when it was not 0, on its way back

# Publish/subscribe, continued: 0x58 - 0x5f
DURABLE: Final = (
    0x58  # (records: tuple of bytes): durable subscribers, see ``iris.patterns.pubsub.interest.durable_names``
)
DURABLE_AWAY: Final = 0x59  # (name: str, published: int): I had published so many events in all when you were gone

# Federation: 0x60 - 0x6f.  A site is its name, a node 16 bytes; see ``iris.cluster.directory.messages``.
CARRY: Final = 0x60  # (hops: int, target site: str, target: node, source site: str, source: node, frame: bytes)
CARRY_REFUSED: Final = 0x61  # (hops: int, target site, target, source site, source, reason: int): on its way back
ROUTE: Final = 0x62  # (site, gateway: node, path: tuple of site, node, site, node, ...): an empty path: no more
EXPORTS: Final = 0x63  # (site, gateway: node, base: int, version: int, added: tuple, removed: tuple, more: bool)
ALLOWED: Final = 0x65  # (clusters, topics out, topics in): patterns; what the gateway lets through, for its own site
EXPORTS_WANTED: Final = 0x64  # (site, gateway: node): send me all that it exports
COPY: Final = 0x66  # (hops: int, source site, source: node, targets: tuple of site, nodes: bytes, ..., frame: bytes)
TRACE: Final = 0x67  # (hops: int, target site, target, source site, source, number: int): who is that many hops away?
TRACED: Final = 0x68  # (hops: int, target site, target, source site, source, number: int): the source is, answering

BETWEEN_REALMS: Final = frozenset(
    {
        *(PING, PONG, GOODBYE, RESET),
        *(REQUEST, REPLY, FAILURE, CANCEL, AWAITED, RUNNING, TIMED),
        *(BROADCAST, BROADCAST_CREDIT, BROADCAST_CREDIT_WANTED),
        *(TUNNEL_OPEN, TUNNEL_ACCEPT, TUNNEL_REFUSE, TUNNEL_CHUNK, TUNNEL_EOF, TUNNEL_ACK, TUNNEL_CLOSE, TUNNEL_MARKED),
        *(INTEREST, SENDER_KEY, SENDER_KEY_WANTED, COPY),
        *(CARRY, CARRY_REFUSED, TRACE, TRACED, ROUTE, EXPORTS, EXPORTS_WANTED),
    }
)
"""What is taken from nodes of another realm.  The rest is an affair of one realm: who is in it, whom it has expelled,
and how its publishers and subscribers settle what was lost."""
