"""Configuration: every number that shapes Iris, with its unit and its reason.

It is one frozen value, given at ``open_node``.
"""

from __future__ import annotations

import math
from typing import Final, final

from msgspec import Struct, structs

from iris.kernel.errors import ConfigError
from iris.kernel.numerals import as_float, as_whole, shown

KIB = 1024
MIB = 1024 * 1024

_NAMES = 768
"""Size of a message beside payload and headers, in bytes: a topic and a key of 256 each, and the fields around them."""


@final
class Config(Struct, frozen=True, kw_only=True):
    """Limits and timings of a node.  Sizes are bytes, times are seconds.  The defaults suit a data centre."""

    # -- messages and links ------------------------------------------------------------------------------
    max_payload: int = MIB
    """Largest payload of one message, sent or received: what NATS, Kafka and Mangos allow.  Larger things go by
    tunnel."""

    max_headers: int = 8 * KIB
    """Largest sum of all header names and values of one message, sent or received."""

    batch_bytes: int = 256 * KIB
    """A link seals its batch when that has this size.  Events take 5 to 25 % less processor time at either end than
    with 64 KiB."""

    batch_messages: int = 512
    """Messages of a batch at most.  Receivers accept no more in one: 10 us of work for each."""

    link_bytes: int = 16 * MIB
    """Messages waiting on one link.  Beyond it requests end in ``NotSent``; publishers wait or drop, and count it."""

    # -- security ----------------------------------------------------------------------------------------
    handshake_timeout: float = 5.0
    """A handshake that has not finished is given up after so long."""

    session_lifetime: float = 120.0
    """A fresh handshake replaces a session of this age."""

    session_rejected: float = 180.0
    """Frames of a session older than this are refused: late enough for everything in flight at the change."""

    half_open_handshakes: int = 1024
    """Handshakes in progress as the answering side, and connections that have not shown a genuine frame.  Beyond it the
    oldest one is dropped and counted: an honest one is over within milliseconds."""

    half_open_per_address: int = 32
    """The limit of ``half_open_handshakes`` for one address."""

    dial_backs: int = 64
    """Dials at one time to the addresses that unauthenticated peers give, to answer them; half of
    ``half_open_per_address`` for one address.  All of them are half of what a transport dials at one time.  Beyond it
    the oldest one is dropped and counted."""

    failed_dials: int = 128
    """Dials to one host (for IPv6 to one network of 64 bits) that may lead to nobody, by the word of one cluster's
    members or of one peer at another host.  A dial that finds a node does not count."""

    failed_dial_rate: float = 2.0
    """Further such dials per second in the long run, so a host that restarts is found again."""

    handshake_rate: float = 50.0
    """First frames per second from one address in the long run, at most 2.5 % of this node's time.  The nodes of
    another realm count as one address."""

    handshake_burst: int = 100
    """First frames from one address that are taken at once: enough for a machine full of nodes."""

    frame_timeout: float = 10.0
    """A connection without a whole frame for so long is closed, if the peer has several.  The one by which the last
    frame came stays."""

    # -- membership --------------------------------------------------------------------------------------
    probe_interval: float = 0.5
    """One random member is probed this often: the detection time is proportional to it.  A gateway asks each of its
    neighbours half as often."""

    probe_timeout: float = 0.25
    """After this time without an answer others are asked to probe: above any round trip, below the interval."""

    gossip_interval: float = 0.1
    """Pending updates go to ``gossip_fanout`` random members this often, less often from a starved node."""

    gossip_fanout: int = 3
    """Members that get each round of updates; an update reaches n members in about log_fanout(n) rounds."""

    probe_helpers: int = 3
    """Members that are asked to probe one that did not answer.  With 5 % loss all three fail in 0.6 % of cases."""

    update_sends: int = 12
    """Each member sends each update this often: all of n senders miss one given member with e**-12."""

    update_bytes: int = 32 * KIB
    """Updates in one gossip message: 46 whole records, or 340 renewals."""

    suspicion_multiplier: float = 3.0
    """A suspect is declared dead after ``multiplier * max(1, log10(n)) * probe_interval`` with enough witnesses."""

    suspicion_max_multiplier: float = 4.0
    """Without further witnesses the suspicion lasts this many times longer (Lifeguard)."""

    suspicion_witnesses: int = 3
    """Members that must have seen the same for the shortest suspicion."""

    refused_grace: float = 0.4
    """After enough witnesses were refused, the suspect has this long to show that it only lost its links."""

    doubts: int = 16
    """Members with an overdue answer that are probed at one time."""

    synchronize_interval: float = 15.0
    """The whole state is compared with one random member this often (anti-entropy)."""

    state_bytes: int = 48 * KIB
    """Records in one message of a state transfer."""

    lost_interval: float = 1.0
    """A dead member is tried again this often, at most 16 per interval by all members together."""

    member_limit: int = 20_000
    """Members that this node takes in, at about 3 KiB each: twice the largest realm simulated."""

    records_per_cluster_key: int = 5_000
    """Members of one cluster's key, dead and left ones included: anyone with that key can make up any number.  Beyond
    it the dead and left ones are removed first; then, for a member that is linked, one that nobody could be linked
    to."""

    clients_per_cluster_key: int = 2_000
    """Clients of one cluster's key that may be linked to this node, and nodes of one other realm that begin links to
    it.  A link to one takes 20 KiB."""

    gone_limit: int = 20_000
    """Dead and left members that are remembered.  A partition heals by itself if its other side is no larger."""

    dead_retention: float = 600.0
    """Members that left are remembered this long, so that late gossip cannot bring them back."""

    # -- services ----------------------------------------------------------------------------------------
    service_concurrency: int = 256
    """Handlers of one service that run at the same time."""

    queue_delay_target: float = 0.02
    """A request that would wait longer than this for a handler is refused, once the queue has stood for three times as
    long.  If handlers take longer on average, that time counts instead."""

    service_queue_bytes: int = 64 * MIB
    """Payloads and headers of requests that wait for a handler of one service; then ``Overloaded``."""

    service_queue: int = 1024
    """Requests that wait for a handler of one service; then ``Overloaded``, first to the cluster of which most
    waits."""

    # -- broadcasts --------------------------------------------------------------------------------------
    broadcast_window: int = 4 * MIB
    """Broadcasts of one sender on their way to a member and waiting there.  Each counts 4 KiB more than it has, so
    1,024 small ones have room.  Members report at half of that."""

    broadcast_patience: float = 5.0
    """Broadcasts pass over members of one owner for whose credit they have waited so long in all since half of a window
    was sent to them, until half of their window is free.  Events that are not confirmed pass over subscribers with
    ``overflow="wait"`` in the same way."""

    # -- relay trees -------------------------------------------------------------------------------------
    relay_above: int = 32
    """Above this many receivers a message goes through others."""

    relay_fan_out: int = 10
    """Nodes to which each node hands a message on: 110 receivers are two hops away, 1,110 three."""

    # -- publish/subscribe -------------------------------------------------------------------------------
    subscription_messages: int = 65536
    """Events waiting for one subscriber, in number."""

    subscription_bytes: int = 64 * MIB
    """Events waiting for one subscriber, in bytes."""

    interest_bytes: int = 16 * MIB
    """Memory that the patterns of one node may take at this one: about 26,000 of 20 bytes.  A node of another realm has
    an eighth, and all nodes of that realm have it together."""

    published_topics: int = 65_536
    """Topics of which this node, as a publisher, knows the numbering and the routes: about 400 bytes each.  Beyond it
    the topic that was not published on for longest is forgotten, and begins anew with its next event."""

    retained_events: int = 4096
    """Topics of which this node, as a publisher, keeps the last value for later subscribers."""

    retained_bytes: int = 4 * MIB
    """All such values.  They take no more than half of a link's room."""

    durable_bytes: int = 2 * MIB
    """Records of durable subscribers that are remembered, some 0.7 KiB each; one cluster has a quarter, so the 512
    shards of a bridge may be at as many members."""

    subscribe_timeout: float = 5.0
    """A member that has not confirmed a new subscription by then is passed over, and counted."""

    # -- tunnels -----------------------------------------------------------------------------------------
    tunnel_window: int = MIB
    """Bytes in flight in one direction of one tunnel: throughput <= window / round trip."""

    site_tunnel_window: int = 8 * MIB
    """The same for tunnels to other sites: over a round trip of 40 ms it gives 200 MiB/s, where 1 MiB gives 25."""

    tunnel_chunk: int = 256 * KIB
    """Tunnels send payloads in pieces of this size at most, so that other messages find gaps between them."""

    tunnel_retry: float = 1.0
    """After this long without an acknowledgement the other end is asked how far it is: above any round trip."""

    tunnel_keepalive: float = 15.0
    """A tunnel with nothing in progress asks this often whether the other end still has it."""

    tunnel_silence: float = 60.0
    """A tunnel whose other end answers nothing for this long is broken, though its node may be alive elsewhere."""

    tunnel_idle: float = 3600.0
    """A tunnel in which nothing has moved for this long is closed at both ends."""

    tunnels_per_node: int = 4096
    """Tunnels that one node may have open to this one; the next is refused as ``Overloaded``."""

    # -- sites -------------------------------------------------------------------------------------------
    site_patience: float = 120.0
    """A link to a node of another site waits this long for a route there: below the age at which sessions are
    refused."""

    site_settling: float = 10.0
    """A gateway that came less than this ago may not know its site yet: what it does not name may be there.  Twice the
    longest pause after which a node dials its seeds again."""

    # -- bridges -----------------------------------------------------------------------------------------
    bridge_groups: int = 1024
    """Groups of readers that a member of a bridge remembers."""

    bridge_groups_per_owner: int = 128
    """Groups of one cluster."""

    bridge_queries: int = 65_536
    """Queries whose last batch a member of a bridge remembers, so that it is stored once: 8 MiB of its index."""

    bridge_queries_per_owner: int = 32_768
    """Queries of one cluster.  Batch jobs are forgotten after a day, so a cluster may start one each 2.6 s."""

    bridge_staged_bytes: int = 16 * 1024 * MIB
    """Rows that Spark has left on the disk of a bridge's member, and not committed.  A file counts 64 KiB at least."""

    bridge_staged_bytes_per_owner: int = 4 * 1024 * MIB
    """Such rows of one cluster: a batch of four million rows of 1 KB.  Confirmations wait while a batch is stored: 10
    to 20 s for so much."""

    bridge_stagings_per_owner: int = 32
    """Parts that one cluster stages at a member at a time, each an open file.  Others wait."""

    bridge_reads_per_owner: int = 64
    """Ranges that one cluster reads from a member at a time, each of which takes up to 4 MiB there.  Others wait."""

    bridge_workers_per_owner: int = 256
    """Workers of queues, and consumers, that one cluster may have at a member of a bridge; others wait."""

    bridge_polls_per_owner: int = 64
    """Questions of one cluster that wait at a member for news, one for each idle query, in the places for handlers
    (``service_concurrency``).  One more is answered at once."""

    # -- requests ----------------------------------------------------------------------------------------
    absence_patience: float = 10.0
    """An idempotent request to a cluster whose last member went less than this ago waits for another one.  Later it is
    ``NoSuchCluster`` at once."""

    # -- shutdown ----------------------------------------------------------------------------------------
    drain_timeout: float = 5.0
    """Closing a node lets running handlers finish for at most this long."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            number: float | None = as_float(value)
            if number is None or not 0 < number < math.inf:
                raise ConfigError(f"config: {name} is {shown(value)}: use a finite number above 0")
            if self.__annotations__[name] == "int":
                number = as_whole(value)
                if number is None:
                    raise ConfigError(f"config: {name} is {shown(value)}: use a whole number")
            structs.force_setattr(self, name, number)
        if self.max_payload > 16 * MIB:
            raise ConfigError("config: max_payload is above 16 MiB: send larger things through a tunnel")
        if self.max_headers > 16 * KIB:
            raise ConfigError("config: max_headers is above 16 KiB: a frame has no room for more beside its payload")
        if self.broadcast_window < 256 * KIB:
            raise ConfigError("config: broadcast_window is below 256 KiB, with which every sender begins")
        if self.batch_bytes > 256 * KIB:
            raise ConfigError("config: batch_bytes is above 256 KiB: receivers take no more work in one batch")
        if self.batch_messages > 512:
            raise ConfigError("config: batch_messages is above 512: receivers take no more messages in one batch")
        if self.link_bytes < self.max_payload + max(self.batch_bytes, self.max_headers + _NAMES):
            least = "max_payload + batch_bytes, or max_payload + max_headers"
            raise ConfigError(f"config: link_bytes is below {least}: the largest message has no room")
        if self.subscription_bytes < self.max_payload + self.max_headers + _NAMES:
            raise ConfigError("config: subscription_bytes is below max_payload + max_headers: an event may never fit")
        if self.session_rejected <= self.session_lifetime:
            raise ConfigError("config: session_rejected is not above session_lifetime: sessions could not be renewed")


DEFAULTS: Final = Config()
"""The configuration of a node that is given none."""
