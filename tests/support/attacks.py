"""Members that break the rules: frames of any content, sealed with a session that the victim has with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast, final

import trio
from msgspec.structs import replace

import iris
from iris.cluster.mesh.mesh import Mesh
from iris.cluster.swim.gossip import Claim, Evidence
from iris.kernel.buffer_pool import give_back
from iris.kernel.config import Config
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.kernel.wire.codec import encode_batch
from iris.kernel.wire.header import FRAME_OVERHEAD
from iris.kernel.wire.kinds import Message
from iris.patterns.multicast import tree as relay
from iris.patterns.pubsub.interest.durable_names import sign_record
from iris.patterns.pubsub.tree import topology as event_tree
from iris.security.channel import Session
from tests.support.messages import fields_of, raw

MAX_FRAME: Final = Config().max_payload + FRAME_OVERHEAD
"""Largest frame that a node with the usual limits accepts, in bytes."""

_SEAL: Final = 32
"""Size of header and tag of a frame, in bytes."""


@contextlib.contextmanager
def renumbering(session: Session) -> Iterator[Callable[[int], None]]:
    """Let frames be sealed in another order than that of their numbers; afterwards numbers go on after the highest.

    What it yields sets the number of the frame that is sealed next, counted from that of the first one.
    """
    first = after = session._sequence

    def number_next(number: int) -> None:
        nonlocal after
        after = max(after, session._sequence)
        session._sequence = first + number

    yield number_next
    session._sequence = max(after, session._sequence)


@final
class Attacker:
    """A member of the realm that sends what it likes to one other node, in the session that they have.

    Attributes:
        mesh: of the member.
        victim: the mesh that it attacks.
        url: where that one is linked to again when it has ended the link.
    """

    def __init__(self, mesh: Mesh, victim: Mesh, url: str | None = None) -> None:
        self.mesh: Final = mesh
        self.victim: Final = victim
        self.url: Final = url or victim.listening[0]

    # -- frames

    def seal(self, *messages: Any) -> bytes:
        """Return the frame that carries these messages."""
        return self.seal_batch(encode_batch(list(messages)))

    def seal_batch(self, batch: bytes) -> bytes:
        """Return the frame that carries a batch."""
        session = self.mesh.peers[self.victim.node].session
        assert session is not None
        sealed = session.seal(batch)
        frame = bytes(sealed)
        give_back(sealed)
        return frame

    async def send(self, frame: bytes) -> None:
        """Send a frame by the connection to the victim, if it is still there."""
        peer = self.mesh.peers.get(self.victim.node)
        outgoing = None if peer is None else peer.link.outgoing
        if outgoing is not None:
            with contextlib.suppress(trio.ClosedResourceError):
                while not outgoing.send_nowait(frame):
                    await outgoing.wait_writable()

    def nested(self, kind: type[Message], depth: int, *inner: Message) -> bytes:
        """Return a frame in a FORWARD to the victim in a frame in a FORWARD ...: so many, or of CARRY."""
        session = self.mesh.peers[self.victim.node].session
        assert session is not None
        frame = b""
        with renumbering(session) as number_next:
            for number in range(depth, -1, -1):  # what is outside is opened first, and has the lowest number
                number_next(number)
                message = self.around(kind, frame) if number < depth else None
                frame = self.seal(*((message,) if message else inner or (kinds.Ping(1),)))
        return frame

    def around(self, kind: type[Message], frame: bytes) -> Message:
        """Return the FORWARD or CARRY that brings a frame to the victim."""
        node = bytes.fromhex(self.victim.node)
        if kind is kinds.Forward:
            return kinds.Forward(node, frame)
        return kinds.Carry(16, self.victim.tag.site, node, self.mesh.tag.site, bytes.fromhex(self.mesh.node), frame)

    def carried(self, kind: type[Message], *frames: tuple[Message, ...]) -> bytes:
        """Return a frame with so many FORWARDs or CARRYs, each around a frame with some messages."""
        session = self.mesh.peers[self.victim.node].session
        assert session is not None
        with renumbering(session) as number_next:
            number_next(1)
            around = [self.around(kind, self.seal(*messages)) for messages in frames]
            number_next(0)
            return self.seal(*around)

    # -- links

    async def wait_linked(self) -> None:
        """Wait until both ends have the link, which the last frame may have ended."""
        with trio.fail_after(120):
            while not self.is_linked:
                with contextlib.suppress(iris.IrisError):
                    await self.mesh.connect([self.url])
                await trio.sleep(0.05)

    @property
    def is_linked(self) -> bool:
        """True if both ends have the link."""
        near, far = self.mesh.peers.get(self.victim.node), self.victim.peers.get(self.mesh.node)
        return near is not None and far is not None and near.link.is_up and not (near.leaving or far.leaving)


@final
class Messages:
    """Messages of every kind as an attacker could make them, each a little different from the one before.

    Those that have to be signed are signed by the attacker, as far as it is its own word.

    Args:
        attacker: who says it, and to whom.
        other: a third node.
        record: the attacker's own record of membership.
    """

    def __init__(self, attacker: Attacker, other: NodeId, record: kinds.RecordUpdate) -> None:
        self._attacker = attacker
        self._other = bytes.fromhex(other)
        self._record = record
        self._next = 0
        self._makers: Mapping[type[Message], Callable[[int], tuple[object, ...]]] = self._table()

    @property
    def kinds(self) -> frozenset[type[Message]]:
        """Kinds of messages that can be made."""
        return frozenset(self._makers)

    def make(self, kind: type[Message]) -> Any:
        """Return another message of a kind."""
        self._next += 1
        return raw(kind, *self._makers[kind](self._next))

    def _table(self) -> dict[type[Message], Callable[[int], tuple[object, ...]]]:
        attacker, other = self._attacker, self._other
        victim, own = bytes.fromhex(attacker.victim.node), bytes.fromhex(attacker.mesh.node)
        here, there = attacker.victim.tag.site, attacker.mesh.tag.site
        origin = (there, own)
        return {
            kinds.Ping: lambda n: (n,),
            kinds.Pong: lambda n: (n,),
            kinds.Goodbye: lambda n: (f"goodbye {n}",),
            kinds.Reset: lambda _: (),
            kinds.Revocations: lambda n: (b"%064d" % n,),
            kinds.Forward: lambda n: (other if n % 2 else victim, b"%016d" % n),
            kinds.ForwardRefused: lambda _: (other,),
            kinds.Probe: lambda n: (n, n % 3, 1, ()),
            kinds.ProbeAnswer: lambda n: (n, 5, ()),
            kinds.ProbeRequest: lambda n: (n, other, ()),
            kinds.ProbeReport: lambda n: (n, n % 3, ()),
            kinds.Gossip: lambda n: (tuple(self._claim(n, at) for at in range(8)),),
            kinds.Sync: lambda n: (b"%08d" % n * 256,),
            kinds.Digest: lambda n: (bytes((n % 256,)), b""),
            kinds.Wanted: lambda n: (b"%016d" % n * 64,),
            kinds.State: lambda n: (bool(n % 2), (self._record,) * 8),
            kinds.Join: lambda _: (self._record,),
            kinds.Lookup: lambda n: (n, f"cluster{n}", b"%08d" % n),
            kinds.Found: lambda n: (n, True, n % 2 == 0, (self._record,)),
            kinds.Unused: lambda n: (n % 3,),
            kinds.Request: lambda n: (n, "victim", None, 5000, n % 8, None, b"question"),
            kinds.Reply: lambda n: (n, b"answer"),
            kinds.Failure: lambda n: (n, "code", "text", 0),
            kinds.Cancel: lambda n: (n,),
            kinds.Awaited: lambda n: (n,),
            kinds.Running: lambda n: (n,),
            kinds.Timed: lambda n: (n, n, n),
            kinds.Blocked: lambda n: (n, "victim", None, f"file.py:{n} in handler", n, bool(n % 2)),
            kinds.Weight: lambda n: ("victim", 1 + n % 16),
            kinds.Part: lambda n: (2 + n % 16, kinds.Reply(n, b"answer")),
            kinds.Broadcast: lambda n: ("victim", ("n", str(n)), b"all", n),
            kinds.BroadcastCredit: lambda n: ("victim", n, 0, 262_144 + n, 0),
            kinds.BroadcastCreditWanted: lambda n: ("victim", n),
            kinds.Relay: self._relay,
            kinds.Relayed: lambda n: (own, ((n, 0),)),
            kinds.Received: lambda n: (n % 4, n % 3, bool(n % 2), (n,) * 7, ((f"t.{n}", *(n,) * 7),) * 64),
            kinds.ReceivedWanted: lambda n: (n,),
            kinds.Interest: lambda n: (n, bool(n % 2), ((f"p.{n}", None, False, False, ()),), ()),
            kinds.InterestKnown: lambda n: (n, n),
            kinds.Events: lambda n: (f"t.{n}", n, n, None, None, None, (b"event",), ()),
            kinds.Confirmed: lambda n: (((0, 999_999),) * 512 if n % 2 else ((n, n),),),
            kinds.Hold: lambda n: ("t.>", bool(n % 2)),
            kinds.Retained: lambda n: (f"t.{n}", n, n, None, None, b"value", ()),
            kinds.RetainedWanted: lambda n: ((">", "t.>", "*.>", "t.*", f"t.{n}")[n % 5],),
            kinds.ConfirmDelayed: lambda n: (f"reason {n}",),
            kinds.EventTree: lambda n: (n, b"\1", ((other, b"\2"),)),
            kinds.EventRoute: lambda n: (n, n, bool(n % 2)),
            kinds.EventsRelayed: self._events_relayed,
            kinds.EventRelay: lambda n: (n, n % 5, other),
            kinds.SenderKey: lambda n: (n, 1 + n % 2, b"%032d" % n),
            kinds.SenderKeyWanted: lambda n: (n,),
            kinds.CopiesLost: lambda _: (),
            kinds.TunnelOpen: lambda n: (n, "victim", None, None, 65_536, 65_536),
            kinds.TunnelAccept: lambda n: (-n, 65_536, 65_536),
            kinds.TunnelRefuse: lambda n: (-n, "code", "text", 0),
            kinds.TunnelChunk: lambda n: (1, n, 1, b"piece", n),
            kinds.TunnelEof: lambda n: (n, 0),
            kinds.TunnelAck: lambda n: (n, 0, 65_536, 0, 1),
            kinds.TunnelClose: lambda n: (n, 1, 0, "reason"),
            kinds.TunnelMarked: lambda n: (n,),
            kinds.Durable: lambda n: ((self._durable(n),),),
            kinds.DurableAway: lambda n: (f"name{n}", n),
            kinds.Announce: lambda n: (other if n % 2 else b"%016d" % n, n % 3 and n, 1000, (f"t{n}",)),
            kinds.AnnounceReached: lambda n: (victim, n, own + other, own),
            kinds.Announced: lambda n: (b"%08d" % n,),
            kinds.Carry: lambda n: (16, here, victim if n % 2 else other, there, own, b"\4%015d" % n),
            kinds.CarryRefused: lambda n: (16, here, victim, there, own, n % 8),
            kinds.Trace: lambda n: (n % 17, here, victim if n % 2 else other, there, own, n),
            kinds.Traced: lambda n: (16, here, victim, there, own, n),
            kinds.Route: lambda n: (f"site{n}", own, ((f"site{n}", own),)),
            kinds.Exports: lambda n: (there, own, n - 1, n, ((1, f"c{n}", own, b""),), (), False),
            kinds.ExportsWanted: lambda n: origin if n % 2 else (here, victim),
            kinds.Allowed: lambda n: ((f"c{n}",), (">",), (">",)),
            kinds.Copy: lambda n: (16, there, own, ((here, victim if n % 2 else other),), b"\5\1\0\0\0\0\0\1%040d" % n),
        }

    def _claim(self, number: int, at: int) -> Message:
        claim = Claim(
            node=NodeId(self._other.hex()),
            incarnation=1 + at,
            witness=self._attacker.mesh.node,
            evidence=Evidence.SILENT,
            signature=b"%064d" % number,
        )
        return claim.as_update()

    def _relay(self, number: int) -> tuple[object, ...]:
        mesh = self._attacker.mesh
        body = encode_batch([kinds.Broadcast("victim", None, b"%d" % number, number)])
        relayed = kinds.Relay(bytes.fromhex(mesh.node), number, int(mesh.wall_clock()), self._other, body, b"")
        return fields_of(replace(relayed, signature=mesh.identity.sign(relay.claim(relayed))))

    def _events_relayed(self, number: int) -> tuple[object, ...]:
        mesh = self._attacker.mesh
        body = encode_batch([kinds.Events("t.a", number, 0, None, None, None, (b"event",), ())] * 64)
        signature = mesh.identity.sign(event_tree.claim(mesh.node, 1, number, 1, body))
        return fields_of(event_tree.RelayedEvents(mesh.node, 1, number, 1, body, signature).message()[0])

    def _durable(self, number: int) -> bytes:
        mesh = self._attacker.mesh
        version = int(mesh.wall_clock() * 1_000_000) + number
        return sign_record(
            mesh.identity, f"name{number}", version=version, site=mesh.tag.site, patterns=("t.>",), group=None, share=()
        ).signed


def as_many_as_fit(message: Any) -> bytes:
    """Return a batch of the same message, 10^5 times or as often as a frame has room for."""
    count = min(100_000, (MAX_FRAME - _SEAL - 5) // (len(encode_batch([message])) - 1))
    return encode_batch([message] * count)


def numbers_in(field: object) -> bool:
    """Return whether there is a number in a field."""
    if isinstance(field, tuple):
        return any(map(numbers_in, cast("tuple[object, ...]", field)))
    return isinstance(field, int) and not isinstance(field, bool)


def with_numbers(field: object, number: int) -> object:
    """Return a field with another number in the place of each."""
    if isinstance(field, tuple):
        return tuple(with_numbers(part, number) for part in cast("tuple[object, ...]", field))
    return number if isinstance(field, int) and not isinstance(field, bool) else field


def lengthened(field: object, size: int) -> object:
    """Return a field of about ``size`` bytes: a longer text or binary, more elements, or deeper ones."""
    match field:
        case str():
            return "x" * size
        case bytes():
            return b"x" * size
        case tuple():
            parts = cast("tuple[object, ...]", field) or ((),)
            return tuple(parts * (1024 // len(parts)))
        case _:
            return field


def deepened(levels: int) -> object:
    """Return an empty array in an array in an array ...."""
    value: object = ()
    for _ in range(levels):
        value = (value,)
    return value
