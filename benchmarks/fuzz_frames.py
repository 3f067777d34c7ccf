"""Hostile frames against everything that reads them: ``python -m benchmarks.fuzz_frames``.

- Outsiders: frames changed at random, on the whole way from the transport to the decoder: header, handshakes in every
  state, sessions.
- Members: batches changed at random, sealed properly, on the same way; and straight into the decoder.
- Members of a whole node, with everything that it can do: see ``benchmarks.fuzz_node``.

Every frame has to end in a message list or in the one error of the function that refused it.  Anything else, or a
process that has grown by more than 64 MiB, is a failure.  A run is repeated with its ``--seed``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import trio
from trio.testing import MockClock

from benchmarks import fuzz_node
from benchmarks.mutation import damaged, malformed
from iris.kernel import kinds, wire
from iris.kernel.errors import AuthenticationError, RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.kernel.wire import BatchDecoder, encode_batch, parse_header_untrusted
from iris.security.handshake import Initiator, Responder
from iris.security.identity import NodeIdentity
from iris.security.keyring import create_realm, issue_cluster
from iris.security.session import Session

WALL: Final = 1_800_000_000.0
MEMORY_LIMIT: Final = 64 * 1024 * 1024

_OURS: Final = 7
_THEIRS: Final = 9
_WAITING: Final = 11
_STARTED: Final = 13


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the frames of one run."""

    frames: int
    refused: Counter[str]
    accepted: int
    grown: int
    """Bytes of memory at the worst moment, beyond those at the start."""
    seconds: float


@final
class Victim:
    """What a node does with a frame, without a network: sessions and handshakes in every state they can be in."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        entropy = self._random.randbytes
        realm, credential = issue_cluster(create_realm(entropy), "orders", entropy=entropy, wall_now=WALL)
        _, other = issue_cluster(realm, "billing", entropy=entropy, wall_now=WALL)
        self._identity: NodeIdentity = credential.new_identity(entropy, WALL)
        self._peer: NodeIdentity = other.new_identity(entropy, WALL)
        self.decoder = BatchDecoder()
        self._session, self.attacker, self.genuine = self._meet()
        self._initiator = self._initiate(_STARTED)
        self._waiting = self._respond(_WAITING)

    def _meet(self) -> tuple[Session, Session, list[bytes]]:
        """Return both ends of a session, and every frame that was exchanged for it."""
        initiator = Initiator(self._peer, index=_THEIRS, hello=b"hello", entropy=self._random.randbytes, wall_now=WALL)
        responder = Responder(self._identity, index=_OURS, entropy=self._random.randbytes)
        responder.receive_first_untrusted(initiator.frame)
        response = responder.respond(b"hello", wall_now=WALL)
        theirs = initiator.receive_untrusted(response, now=0.0, wall_now=WALL)
        assert theirs.frame is not None
        ours = responder.receive_last_untrusted(theirs.frame, now=0.0, wall_now=WALL)
        return ours.session, theirs.session, [initiator.frame, response, theirs.frame]

    def _initiate(self, index: int) -> Initiator:
        initiator = Initiator(
            self._identity,
            index=index,
            hello=b"hello",
            entropy=self._random.randbytes,
            wall_now=WALL,
            expected=NodeId(self._peer.node_id),
        )
        responder = Responder(self._peer, index=_THEIRS, entropy=self._random.randbytes)
        responder.receive_first_untrusted(initiator.frame)
        self.genuine.append(responder.respond(b"hello", wall_now=WALL))
        return initiator

    def _respond(self, index: int) -> Responder:
        initiator = Initiator(self._peer, index=_THEIRS, hello=b"hello", entropy=self._random.randbytes, wall_now=WALL)
        responder = Responder(self._identity, index=index, entropy=self._random.randbytes)
        responder.receive_first_untrusted(initiator.frame)
        response = responder.respond(b"hello", wall_now=WALL)
        last = initiator.receive_untrusted(response, now=0.0, wall_now=WALL).frame
        assert last is not None
        self.genuine.append(last)
        return responder

    def receive(self, frame: bytes) -> bool:
        """Do with a frame what a node does; True if it made a session or brought messages."""
        header = parse_header_untrusted(frame)
        match header.kind:
            case wire.DATA:
                if header.receiver != _OURS:
                    return False
                self.decoder.decode_untrusted(self._session.open_untrusted(frame))
                return True
            case wire.HANDSHAKE_INIT:
                Responder(self._identity, index=_OURS, entropy=self._random.randbytes).receive_first_untrusted(frame)
                return False
            case wire.HANDSHAKE_RESPONSE:
                if self._initiator.over:
                    self._initiator = self._initiate(_STARTED)
                self._initiator.receive_untrusted(frame, now=0.0, wall_now=WALL)
                return True
            case _:
                if self._waiting.over:
                    self._waiting = self._respond(_WAITING)
                self._waiting.receive_last_untrusted(frame, now=0.0, wall_now=WALL)
                return True


def resident() -> int:
    """Return how much memory this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _run(count: int, attempt: Callable[[], bool], progress: Callable[[int], None]) -> Outcome:
    refused: Counter[str] = Counter()
    accepted = 0
    start, worst = resident(), 0
    began = time.perf_counter()
    for number in range(count):
        try:
            accepted += attempt()
        except (AuthenticationError, RemoteProtocolError) as error:
            refused[type(error).__name__] += 1
        if number % 1024 == 0:
            worst = max(worst, resident() - start)
            progress(number)
    worst = max(worst, resident() - start)
    return Outcome(frames=count, refused=refused, accepted=accepted, grown=worst, seconds=time.perf_counter() - began)


def _silent(_: int) -> None:
    """Show no progress."""


def attack_from_outside(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Send frames that are changed copies of genuine ones.  None may be accepted."""
    rng = random.Random(seed)
    victim = Victim(seed)
    data = [victim.attacker.seal(rng.randbytes(rng.randrange(300))) for _ in range(50)]

    def attempt() -> bool:
        genuine = rng.choice(data if rng.random() < 0.5 else victim.genuine)
        frame = damaged(genuine, rng)
        if rng.random() < 0.2 and len(frame) > 16:  # a header that leads somewhere
            header = (rng.randrange(1, 5), 1, 0, rng.choice((0, _OURS, _WAITING, _STARTED)), rng.randrange(60))
            frame = wire.HEADER.pack(*header) + frame[16:]
        return frame != genuine and victim.receive(frame)

    return _run(count, attempt, progress)


def _batch(rng: random.Random) -> bytes:
    messages: list[wire.Message] = [
        (kinds.REQUEST, rng.randrange(2**32), "databases", None, 5000, 0, ("trace", "x" * 20), rng.randbytes(40)),
        (kinds.EVENTS, "orders.created", 7, 0, None, None, (b"payload", wire.encode_payload({"a": [1.5, None]}, 99))),
        (kinds.PING, 2**48 - 1),
        (kinds.GOODBYE, "closing"),
    ]
    return bytes(encode_batch(rng.sample(messages, rng.randrange(1, 4))))


def attack_as_member(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Send malformed batches in proper frames.  Those that decode are message lists."""
    rng = random.Random(seed)
    victim = Victim(seed)

    def attempt() -> bool:
        return victim.receive(victim.attacker.seal(malformed(_batch(rng), rng)))

    return _run(count, attempt, progress)


def attack_decoder(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Give malformed batches, and malformed payloads in them, straight to the decoders."""
    rng = random.Random(seed)
    decoder = BatchDecoder()
    batches = [_batch(rng) for _ in range(50)]

    def attempt() -> bool:
        for message in decoder.decode_untrusted(malformed(rng.choice(batches), rng)):
            for field in message:
                if wire.is_payload(field):
                    wire.decode_payload_untrusted(field)
        return True

    return _run(count, attempt, progress)


def attack_node(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Have members of a realm send hostile messages of every kind to a whole node; whatever it does not refuse passes.

    What raises anything else, or keeps the node from its work, ends in that error.
    """
    start = worst = 0

    def notice(number: int) -> None:
        nonlocal start, worst
        start = start or resident()
        worst = max(worst, resident() - start)
        progress(number)

    began = time.perf_counter()
    found = trio.run(fuzz_node.attack_node, count, seed, notice, clock=MockClock(autojump_threshold=0))
    return Outcome(
        frames=count,
        refused=found.refused,
        accepted=max(0, found.messages - found.refused.total()),
        grown=worst,
        seconds=time.perf_counter() - began,
    )


def main() -> int:
    """Run the attacks in the sizes given; 1 if one found something."""
    parser = argparse.ArgumentParser(description="Hostile frames against everything that reads them.")
    parser.add_argument("--frames", type=int, default=1_000_000, help="on the whole way, half of them sealed properly")
    parser.add_argument("--batches", type=int, default=10_000_000, help="straight into the decoder")
    parser.add_argument("--messages", type=int, default=1_000_000, help="batches of a few messages to a whole node")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = False
    for name, attack, count in (
        ("frames from outside", attack_from_outside, options.frames // 2),
        ("frames of a member", attack_as_member, options.frames - options.frames // 2),
        ("batches into the decoder", attack_decoder, options.batches),
        ("batches to a whole node", attack_node, options.messages),
    ):

        def progress(done: int, name: str = name, count: int = count) -> None:
            if sys.stderr.isatty():
                print(f"\r{name}: {done:,} of {count:,}", end="", file=sys.stderr, flush=True)

        outcome = attack(count, options.seed, progress)
        refused = ", ".join(f"{number:,} {error}" for error, number in sorted(outcome.refused.items()))
        print(
            f"{name}: {outcome.frames:,} in {outcome.seconds:.0f} s; refused {refused}; accepted {outcome.accepted:,}; "
            f"memory +{outcome.grown / 2**20:.1f} MiB"
        )
        failed |= outcome.grown > MEMORY_LIMIT or (attack is attack_from_outside and outcome.accepted > 0)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
