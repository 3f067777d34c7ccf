"""Messages between nodes: one class each, with its kind and its fields in the order in which they are sent.

A message is an array that begins with its kind.  The types below are all that a receiver need check of the form: the
decoder refuses whatever does not fit, in C, before anything is made of it.  What a field may say is its receiver's to
check.  Kinds stay below 128, where msgpack spends one byte on them.

``payload`` is opaque: bytes, or a packed value (see ``iris.kernel.wire.payload``).  ``headers`` is None or names and
values by turns.  A message that is made here is not checked: only what comes from a peer is.
"""

# Not ``from __future__ import annotations``: msgspec would evaluate the text of each annotation, 2 ms at every start.

from typing import Annotated, Final, NamedTuple, cast

from msgspec import Meta, Struct
from msgspec.msgpack import Ext

from iris.kernel.names import NodeId

MAX_ARRAY: Final = 1024
"""Elements of one array on the wire."""

MAX_WEIGHT: Final = 1024
"""Members that one may stand for."""

MAX_NUMBER: Final = 2**62
"""Largest number that is taken from a peer.  What follows from some of them, a sum or the next one, then still has a
form on the wire, which ends at 2**64 - 1: what has none could not be told to anybody, not even as a counter."""

Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Number = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Name = Annotated[str, Meta(max_length=256)]
"""A cluster, a site, a topic, a pattern or a key."""
Text = Annotated[str, Meta(max_length=65536)]
Node = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""A node id."""
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Proof = Annotated[bytes, Meta(max_length=4096)]
"""The certificates that allow a node to serve a cluster; empty if its own does."""
Packed = Annotated[bytes, Meta(max_length=48 * 1024)]
"""Node ids, or other items of fixed size, one after the other."""
Places = Annotated[bytes, Meta(max_length=512)]
"""A set of places in a tree: one bit for each."""
Payload = bytes | Ext
Headers = Annotated[tuple[str, ...], Meta(max_length=MAX_ARRAY)] | None
Pairs = Annotated[tuple[tuple[Count, Count], ...], Meta(max_length=MAX_ARRAY)]
Counts = Annotated[tuple[Count, ...], Meta(max_length=MAX_ARRAY)]
Patterns = Annotated[tuple[Name, ...], Meta(max_length=256)]


class Message(Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """A message from one node to another."""


# -- links: 0x01 - 0x0f ------------------------------------------------------------------------------------
# Received by ``Mesh`` and ``Disconnects`` (iris.cluster.mesh), ``RevocationExchange`` and ``Forwarder`` (membership).


class Ping(Message, tag=0x01):
    """Answered at once; proves that the session works in both directions."""

    token: Count


class Pong(Message, tag=0x02):
    """The answer to a ping."""

    token: Count


class Goodbye(Message, tag=0x03):
    """The sender closes this link on purpose."""

    reason: Text


class Reset(Message, tag=0x04):
    """Frames between us may have been lost, either way."""


class Revocations(Message, tag=0x05):
    """The newest revocation list that the sender has."""

    signed: bytes


class Forward(Message, tag=0x06):
    """A frame to be handed on; to the target itself: it is for you, from another."""

    target: Node
    frame: bytes


class ForwardRefused(Message, tag=0x07):
    """There is no link to that node here."""

    target: Node


# -- membership: 0x10 - 0x1f -------------------------------------------------------------------------------
# Received by ``Membership`` (iris.cluster.membership).


class RecordUpdate(Message, tag=0):
    """A member record, signed by its subject; see ``iris.cluster.swim.records``."""

    node: Node
    incarnation: Count
    name: Name
    proof: Proof
    site: Name
    addresses: Annotated[tuple[Name, ...], Meta(max_length=16)]
    clusters: Annotated[tuple[tuple[Name, Proof, bool], ...], Meta(max_length=64)]
    interest_version: Count
    leaving: bool
    signature: Annotated[bytes, Meta(max_length=128)]


class RenewalUpdate(Message, tag=1):
    """A known record with a higher incarnation and otherwise unchanged, signed by its subject."""

    node: Node
    incarnation: Count
    signature: Annotated[bytes, Meta(max_length=128)]


class ClaimUpdate(Message, tag=2):
    """A witness finds a node silent (1) or refused (2), and signs that."""

    node: Node
    incarnation: Count
    witness: Node
    evidence: Annotated[int, Meta(ge=1, le=2)]
    signature: Annotated[bytes, Meta(max_length=128)]


class AccusationUpdate(Message, tag=3):
    """Somebody holds that node dead at this incarnation."""

    node: Node
    incarnation: Count


AnyUpdate = RecordUpdate | RenewalUpdate | ClaimUpdate | AccusationUpdate
Updates = Annotated[tuple[AnyUpdate, ...], Meta(max_length=512)]


class Probe(Message, tag=0x10):
    """A question whether the receiver lives, and how the prober sees it: alive (0), suspect (1) or dead (2)."""

    sequence: Count
    state: Annotated[int, Meta(ge=0, le=2)]
    incarnation: Count
    updates: Updates


class ProbeAnswer(Message, tag=0x11):
    """The answer to a probe, with how long requests wait here, in microseconds."""

    sequence: Count
    queue_delay: Count
    updates: Updates


class ProbeRequest(Message, tag=0x12):
    """Probe this node for me."""

    sequence: Count
    node: Node
    updates: Updates


class ProbeReport(Message, tag=0x13):
    """The outcome of a probe that was asked for: the node has answered (0), was silent (1) or refused (2)."""

    sequence: Count
    verdict: Annotated[int, Meta(ge=0, le=2)]
    updates: Updates


class Gossip(Message, tag=0x14):
    """News of members."""

    updates: Updates


class Sync(Message, tag=0x15):
    """256 hashes of 8 bytes: of the sender's view."""

    hashes: Annotated[bytes, Meta(min_length=2048, max_length=2048)]


class Digest(Message, tag=0x16):
    """Buckets of the view that differ, and 24 bytes for each node in them: its id and its incarnation."""

    buckets: Annotated[bytes, Meta(max_length=256)]
    entries: Packed


class Wanted(Message, tag=0x17):
    """Send me the records of these nodes."""

    nodes: Packed


class State(Message, tag=0x18):
    """Part of an answer to a join, a digest or what was wanted."""

    last: bool
    updates: Updates


class Join(Message, tag=0x19):
    """Send me everybody's records; this is mine."""

    record: RecordUpdate


class Lookup(Message, tag=0x1A):
    """A client asks for the records of a cluster's members, unless ``known`` is the hash of those there are."""

    sequence: Count
    cluster: Name
    known: Annotated[bytes, Meta(min_length=8, max_length=8)]


class Found(Message, tag=0x1B):
    """Part of the answer to a lookup.  ``changed`` is false if the client has it all; ``last`` is true in the last."""

    sequence: Count
    changed: bool
    last: bool
    updates: Updates


OfMembership = (
    Probe | ProbeAnswer | ProbeRequest | ProbeReport | Gossip | Sync | Digest | Wanted | State | Join | Lookup | Found
)
"""Messages of membership."""


class Unused(Message, tag=0x1D):
    """The sender has no use for the link: 0 proposes to end it, 1 agrees and uses it no more, 2 keeps it after all."""

    step: Annotated[int, Meta(ge=0, le=2)]


# -- requests: 0x20 - 0x2f ---------------------------------------------------------------------------------
# Received by ``Server`` (iris.patterns.service) at members, by ``Requests`` (iris.patterns.request) at callers.


class Request(Message, tag=0x20):
    """A request: ``budget`` in milliseconds.

    Flags: 1 idempotent, 2 and 4 priority, 8 timed, 16 with an idempotency key in its headers, 32 a survey's.
    """

    id: Count
    cluster: Name
    operation: str | None
    budget: Count
    flags: Count
    headers: Headers
    payload: Payload


class Reply(Message, tag=0x21):
    """The result of a request's handler."""

    id: Count
    payload: Payload


class Failure(Message, tag=0x22):
    """A request was refused, or its handler raised: then ``retry_after``, in milliseconds, is -1."""

    id: Count
    code: Text
    text: Text
    retry_after: Annotated[int, Meta(ge=-1, le=MAX_NUMBER)] = 0


class Cancel(Message, tag=0x23):
    """The caller no longer waits."""

    id: Count


class Awaited(Message, tag=0x24):
    """Frames may be lost, and the caller still waits: say so if the request is not here."""

    id: Count


class Running(Message, tag=0x25):
    """Frames may be lost, and the member is still at the request: cancel it if nobody waits."""

    id: Count


class Timed(Message, tag=0x26):
    """Microseconds that a timed request waited for its handler, and that the handler took; sent before the answer."""

    id: Count
    waited: Count
    ran: Count


class Blocked(Message, tag=0x27):
    """A handler holds up the sender, which lives and does nothing else meanwhile; ``over``: it has gone on."""

    id: Count
    """The request of the receiver that the handler is for.  0: it is for none."""
    cluster: Name
    operation: Name | None
    place: Name
    elapsed: Count
    """Milliseconds."""
    over: bool


class Weight(Message, tag=0x28):
    """The sender stands for so many members of a cluster, of which it is one: programs behind it."""

    cluster: Name
    weight: Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]


class Part(Message, tag=0x29):
    """Answer to a survey of one of several members for which the sender stands; the last one's has no such."""

    members: Annotated[int, Meta(ge=2, le=65536)]
    outcome: Reply | Failure


# -- broadcast: 0x30 - 0x37 --------------------------------------------------------------------------------
# Received by ``Server`` (iris.patterns.service), ``Relays`` and ``Broadcasts`` (iris.patterns.multicast).


class Broadcast(Message, tag=0x30):
    """A message to every member; ``position`` is where it begins in what its sender has sent, in cost."""

    cluster: Name
    headers: Headers
    payload: Payload
    position: Count


class Relay(Message, tag=0x31):
    """A message to be handed on to the nodes ``behind`` the receiver; ``at`` is the origin's date."""

    origin: Node
    number: Number
    at: Count
    behind: Annotated[bytes, Meta(max_length=512 * 16)]
    body: bytes
    signature: Signature


class Relayed(Message, tag=0x32):
    """Messages of an origin were handed on: the number of each, and how many copies are lost."""

    origin: Node
    outcomes: Pairs


class BroadcastCredit(Message, tag=0x33):
    """Credit of the receiver for broadcasts; see ``iris.patterns.multicast.broadcast_credit``."""

    cluster: Name
    seen: Count
    """The end of the last broadcast that has arrived: its position and its cost."""
    queued: Count
    """The part of these that waits for the handlers, in cost."""
    size: Count
    """The window, in cost."""
    refused: Count
    """Broadcasts of the receiver that were refused here, since it is known here."""


class BroadcastCreditWanted(Message, tag=0x34):
    """Nothing is on the way before this position: grant me credit."""

    cluster: Name
    end: Count


# -- books: 0x3a, 0x3b.  Of broadcasts and events, in which nobody answers; see ``iris.patterns.books``. -----------
# Received by ``Bookkeeper``.


class ReceivedEntry(NamedTuple):
    """Counters of the receiver under one name, since it first had any; see ``iris.patterns.books.Columns``."""

    name: Name
    arrived: Count
    copied: Count
    received: Count
    expired: Count
    refused: Count
    dropped: Count
    ended: Count


Totals = tuple[Count, Count, Count, Count, Count, Count, Count]


class Received(Message, tag=0x3A):
    """The sender's counts of the receiver's messages: those names that have changed.

    ``pattern``: broadcasts (0), events (1), events for one of a group (2), events that it did not hand on (3).
    """

    pattern: Annotated[int, Meta(ge=0, le=3)]
    mark: Count
    """Mark of the question whose answer ends with this; else 0."""
    full: bool
    """True if some names are in the total only."""
    total: Totals
    """The counters of ``ReceivedEntry``, of all names together."""
    names: Annotated[tuple[ReceivedEntry, ...], Meta(max_length=64)]


class ReceivedWanted(Message, tag=0x3B):
    """Report now: links keep the order, so what was sent before this and has not come is lost."""

    mark: Number


# -- publish/subscribe: 0x40 - 0x4f ------------------------------------------------------------------------
# Received by ``PubSub`` (iris.patterns.pubsub), and by those that it makes: ``Acknowledgements``, ``Publisher``, trees.


class InterestEntry(NamedTuple):
    """One entry of a node's interest."""

    pattern: Name
    group: Name | None
    durable: bool
    patient: bool
    """Publishers are to wait for this node when it asks for a pause: a subscription has ``overflow="wait"``."""
    share: Counts
    """Shards of a group that divides events by shard: their number, then this node's.  Empty: any member will do."""


ManyTerms = Annotated[tuple[InterestEntry, ...], Meta(max_length=MAX_ARRAY)]


class Interest(Message, tag=0x40):
    """A change of what the sender subscribes to, or all of it."""

    version: Count
    whole: bool
    added: ManyTerms
    removed: ManyTerms


class InterestKnown(Message, tag=0x41):
    """The sender publishes accordingly from here on, and had published so many events before."""

    version: Count
    published: Count


class Events(Message, tag=0x42):
    """A run of consecutive events of one topic; ``confirm`` is the number of the first to be confirmed, or 0."""

    topic: Name
    sequence: Number
    confirm: Count
    group: Name | None
    headers: Headers
    key: Name | None
    payloads: Annotated[tuple[Payload, ...], Meta(min_length=1, max_length=MAX_ARRAY)]
    milestones: Annotated[tuple[Count, ...], Meta(max_length=36)]


class Confirmed(Message, tag=0x43):
    """Events that are durable: the first and the last of each range."""

    ranges: Pairs


class Hold(Message, tag=0x44):
    """A subscriber with ``overflow="wait"`` can take no more for now, or again."""

    pattern: Name
    held: bool


class Retained(Message, tag=0x45):
    """The value that the publisher keeps of a topic."""

    topic: Name
    last: Number
    sequence: Number
    headers: Headers
    key: Name | None
    payload: Payload
    milestones: Annotated[tuple[Count, ...], Meta(max_length=4)]


class RetainedWanted(Message, tag=0x46):
    """Send me the values that you keep for topics that match."""

    pattern: Name


class ConfirmDelayed(Message, tag=0x48):
    """The reason why the sender does not confirm events for now."""

    reason: Annotated[str, Meta(max_length=256)]


class EventTree(Message, tag=0x49):
    """Hand my events on to those, each with the places behind it; ``place`` is the receiver's own."""

    tree: Number
    place: Places
    children: Annotated[tuple[tuple[Node, Places], ...], Meta(max_length=64)]


class EventRoute(Message, tag=0x4A):
    """My events come over that tree from here on; 0: directly."""

    turn: Number
    tree: Count
    wait: bool


class EventsRelayed(Message, tag=0x4B):
    """Events on their way through a tree; ``body`` is an array of messages, or empty at the end."""

    publisher: Node
    tree: Number
    number: Number
    places: Places
    body: bytes
    signature: Signature


class EventRelay(Message, tag=0x4C):
    """State of a relay in an event tree: 0 ready, 1 goes on, 2 held up, 3 node cut off, 4 all came."""

    tree: Count
    state: Annotated[int, Meta(ge=0, le=4)]
    node: Annotated[bytes, Meta(max_length=16)]


class SenderKey(Message, tag=0x4D):
    """The key of copies of events; none was sealed with it before."""

    number: Number
    suite: Count
    key: Annotated[bytes, Meta(max_length=64)]


class SenderKeyWanted(Message, tag=0x4E):
    """Copies under this key have come, and the key has not."""

    number: Number


class CopiesLost(Message, tag=0x4F):
    """Copies of events were lost on their way here."""


# -- tunnels: 0x50 - 0x5f.  ``id`` is the opener's count, negative in what the other end sends. --------------
# Received by ``Tunnels`` (iris.patterns.service).


TunnelId = Annotated[int, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]


class TunnelOpen(Message, tag=0x50):
    """Opens a tunnel; ``window`` in cost, ``limit`` in bytes of one message."""

    id: TunnelId
    cluster: Name
    operation: str | None
    headers: Headers
    window: Annotated[int, Meta(ge=4096, le=MAX_NUMBER)]
    limit: Number


class TunnelAccept(Message, tag=0x51):
    """The other end takes the tunnel."""

    id: TunnelId
    window: Annotated[int, Meta(ge=4096, le=MAX_NUMBER)]
    limit: Number


class TunnelRefuse(Message, tag=0x52):
    """The other end does not; ``retry_after`` in milliseconds."""

    id: TunnelId
    code: Text
    text: Text
    retry_after: Count


class TunnelChunk(Message, tag=0x53):
    """One piece of a message; flags: 1 its last, 2 of a packed value.  ``mark`` is to be sent back, if it is not 0."""

    id: TunnelId
    sequence: Count
    flags: Annotated[int, Meta(ge=0, le=3)]
    data: bytes
    mark: Count = 0


class TunnelEof(Message, tag=0x54):
    """Nothing follows."""

    id: TunnelId
    sequence: Count


class TunnelAck(Message, tag=0x55):
    """Positions of one end of a tunnel; flags: 1 answer, 2 send again what came after ``received``."""

    id: TunnelId
    received: Count
    granted: Count
    sent: Count
    flags: Count


class TunnelClose(Message, tag=0x56):
    """The sender has forgotten the tunnel."""

    id: TunnelId
    code: Annotated[int, Meta(ge=0, le=6)]
    received: Count
    reason: Text


class TunnelMarked(Message, tag=0x57):
    """The mark of a chunk, on its way back."""

    mark: Count


OfTunnel = TunnelOpen | TunnelAccept | TunnelRefuse | TunnelChunk | TunnelEof | TunnelAck | TunnelClose
"""Messages of one end of a tunnel to the other."""


# -- publish/subscribe, continued: 0x58 - 0x5f ---------------------------------------------------------------
# Received by ``DurableSubscribers`` (iris.patterns.pubsub.interest).


class Durable(Message, tag=0x58):
    """Durable subscribers; see ``iris.patterns.pubsub.interest.durable_names``."""

    records: Annotated[tuple[Annotated[bytes, Meta(max_length=32 * 1024)], ...], Meta(max_length=80)]


class DurableAway(Message, tag=0x59):
    """The sender had published so many events in all when the durable subscriber of that name was gone."""

    name: Name
    published: Count


class Announce(Message, tag=0x5A):
    """That node publishes on topics with these first tokens, ``>``: on any.  With a number: who is interested?

    Received by ``Announcements`` (iris.patterns.pubsub), as the next two are.
    """

    publisher: Node
    number: Count
    left: Count
    """Milliseconds for which the sender waits for the answer."""
    roots: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)]


class AnnounceReached(Message, tag=0x5B):
    """The answer: who knows of it by way of the sender, itself included, and who of them is interested."""

    publisher: Node
    number: Count
    nodes: Packed
    interested: Packed


class Announced(Message, tag=0x5C):
    """A hash of what the sender knows of live publishers; who knows something else sends all of it."""

    digest: Annotated[bytes, Meta(min_length=8, max_length=8)]


# -- federation: 0x60 - 0x6f ---------------------------------------------------------------------------------
# Received by ``Sites`` (iris.cluster.sites); at gateways by ``Gateway`` and ``Forwarding`` (iris.federation).


class Carried(Message):
    """A message that gateways carry from a node of one site to a node of another."""

    hops: Annotated[int, Meta(ge=0, le=16)]
    site: Name
    target: Node
    source_site: Name
    source: Node


class Carry(Carried, tag=0x60):
    """A frame from a node of one site to a node of another."""

    frame: bytes


class CarryRefused(Carried, tag=0x61):
    """A frame was not carried: on its way back."""

    reason: Count


class Trace(Carried, tag=0x67):
    """A question which gateway is that many hops away.  It goes where a ``Carry`` would."""

    number: Count


class Traced(Carried, tag=0x68):
    """The source is: the answer to ``Trace``."""

    number: Count


class Route(Message, tag=0x62):
    """The route to a gateway through the sender: the gateways on the way; empty: no more."""

    site: Name
    gateway: Node
    path: Annotated[tuple[tuple[Name, Node], ...], Meta(max_length=16)]


class Exported(NamedTuple):
    """One thing that an origin exports; see ``iris.cluster.directory.messages``."""

    kind: Annotated[int, Meta(ge=1, le=3)]
    name: Name
    node: Node
    proof: Proof


ManyExported = Annotated[tuple[Exported, ...], Meta(max_length=MAX_ARRAY)]


class Exports(Message, tag=0x63):
    """A change of what a gateway exports: from version ``base`` to ``version``."""

    site: Name
    gateway: Node
    base: Count
    version: Count
    added: ManyExported
    removed: ManyExported
    more: bool


class ExportsWanted(Message, tag=0x64):
    """Send me all that this gateway exports."""

    site: Name
    gateway: Node


class Allowed(Message, tag=0x65):
    """The export and import lists of a gateway, for nodes of its own site."""

    clusters: Patterns
    """Clusters of this site that nodes of others may use."""
    out: Patterns
    """Topics of which events may leave."""
    into: Patterns
    """Topics of which events may come in."""


class Copy(Message, tag=0x66):
    """One sealed frame for several nodes, by their sites."""

    hops: Annotated[int, Meta(ge=0, le=16)]
    source_site: Name
    source: Node
    targets: Annotated[
        tuple[tuple[Name, Annotated[bytes, Meta(min_length=16)]], ...], Meta(min_length=1, max_length=512)
    ]
    frame: bytes


BY_KIND: Final[dict[int, type[Message]]] = {
    cast("int", one.__struct_config__.tag): one
    for one in (*Message.__subclasses__(), *Carried.__subclasses__())
    if one not in (Carried, RecordUpdate, RenewalUpdate, ClaimUpdate, AccusationUpdate)
}
"""Every message by its kind."""


BETWEEN_REALMS: Final = frozenset(
    {
        *(Ping, Pong, Goodbye, Reset),
        *(Request, Reply, Failure, Cancel, Awaited, Running, Timed, Part),
        *(Broadcast, BroadcastCredit, BroadcastCreditWanted),
        *(TunnelOpen, TunnelAccept, TunnelRefuse, TunnelChunk, TunnelEof, TunnelAck, TunnelClose, TunnelMarked),
        *(Interest, SenderKey, SenderKeyWanted, Copy),
        *(Received, ReceivedWanted),
        *(Carry, CarryRefused, Trace, Traced, Route, Exports, ExportsWanted),
    }
)
"""Kinds that are accepted from nodes of another realm.  The rest is an affair of one realm: which nodes are in it,
which it has expelled, and what its subscribers confirm."""


OF_CLIENTS: Final = frozenset(
    {
        *(Ping, Pong, Goodbye, Reset, Revocations, Forward, ForwardRefused),
        *(Probe, Lookup),
        *(Request, Cancel, Awaited),
        *(Broadcast, BroadcastCreditWanted, Relay, Relayed, ReceivedWanted),
        *(TunnelOpen, TunnelChunk, TunnelEof, TunnelAck, TunnelClose, TunnelMarked),
    }
)
"""Kinds that are accepted from clients.  They are no members, serve nothing, and neither publish nor subscribe."""


def node_of(field: bytes) -> NodeId:
    """Return the node of which a message has the 16 bytes."""
    return NodeId(field.hex())


def saturated(count: int) -> int:
    """Return a counter to which numbers of peers are added: it stays at 2**62, where it means nothing any more."""
    return min(count, MAX_NUMBER)
