"""Every number that shapes Iris, with its unit and the reason for it.  One frozen value, given at ``open_node``."""

from __future__ import annotations

import dataclasses
from typing import final

from iris.kernel.errors import ConfigError

KIB = 1024
MIB = 1024 * 1024


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Limits and timings of a node.  Sizes are bytes, times are seconds.  The defaults suit a data centre."""

    # -- messages and links ------------------------------------------------------------------------------
    max_payload: int = MIB
    """Largest payload of one message.  1 MiB is what NATS, Kafka and Mangos allow; larger things go by tunnel."""

    max_headers: int = 8 * KIB
    """Largest sum of all header names and values of one message."""

    batch_bytes: int = 64 * KIB
    """A link seals what has gathered when it reaches this size.  Larger batches gained nothing in the measurements."""

    batch_messages: int = 1024
    """At most this many messages in one batch; also the longest array that the decoder accepts."""

    link_bytes: int = 16 * MIB
    """Messages waiting on one link.  Beyond it requests end in ``NotSent`` and publishers wait or drop, counted."""

    send_frames: int = 8
    """Frames that nng may hold for one peer: enough to keep the wire busy, small enough to lose little and to
    let urgent messages overtake tunnels (8 x 64 KiB pass in under a millisecond)."""

    receive_frames: int = 32
    """Frames that nng may hold for this node before its peers feel backpressure."""

    # -- security ----------------------------------------------------------------------------------------
    handshake_timeout: float = 5.0
    """A handshake that has not finished by then is forgotten."""

    session_lifetime: float = 120.0
    """A fresh handshake replaces a session of this age."""

    session_rejected: float = 180.0
    """Frames of a session older than this are refused: late enough for everything in flight at the change."""

    half_open_handshakes: int = 1024
    """Handshakes under way at one time as the answering side; the next one is refused and counted."""

    # -- membership --------------------------------------------------------------------------------------
    probe_interval: float = 0.5
    """Every this often one random member is probed.  Enters the detection time linearly."""

    probe_timeout: float = 0.25
    """An answer later than this makes others be asked to probe.  Above any round trip, below the interval."""

    gossip_interval: float = 0.1
    """Every this often pending updates go to ``gossip_fanout`` random members."""

    gossip_fanout: int = 3
    """Members that get each round of updates; an update reaches n members in about log_fanout(n) rounds."""

    suspicion_multiplier: float = 3.0
    """A suspect is declared dead after ``multiplier * max(1, log10(n)) * probe_interval`` with enough witnesses."""

    suspicion_max_multiplier: float = 4.0
    """Without further witnesses the suspicion lasts this many times longer (Lifeguard)."""

    synchronize_interval: float = 15.0
    """Every this often the whole state is compared with one random member (anti-entropy)."""

    dead_retention: float = 600.0
    """The dead are remembered this long, so that late gossip cannot bring them back."""

    # -- services ----------------------------------------------------------------------------------------
    service_concurrency: int = 256
    """Handlers of one service that run at the same time."""

    service_queue: int = 1024
    """Requests that wait for a handler of one service; beyond it ``Overloaded`` is answered at once."""

    # -- publish/subscribe -------------------------------------------------------------------------------
    subscription_messages: int = 65536
    """Events waiting for one subscriber, in number."""

    subscription_bytes: int = 64 * MIB
    """Events waiting for one subscriber, in bytes."""

    subscribe_timeout: float = 5.0
    """A member that has not confirmed a new subscription by then is passed over, and counted."""

    # -- tunnels -----------------------------------------------------------------------------------------
    tunnel_window: int = MIB
    """Bytes that may be on the way in one direction of one tunnel: throughput <= window / round trip."""

    tunnel_chunk: int = 32 * KIB
    """Tunnel payloads travel in pieces of this size, so that other messages find gaps between them."""

    # -- shutdown ----------------------------------------------------------------------------------------
    drain_timeout: float = 5.0
    """Closing a node lets running handlers finish for at most this long."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or value == float("inf"):
                raise ConfigError(f"config: {field.name} is {value!r}: use a finite number above 0")
        if self.max_payload > 16 * MIB:
            raise ConfigError("config: max_payload is above 16 MiB: send larger things through a tunnel")
