"""Hostile frames against everything that reads them: ``python -m benchmarks.fuzz_frames``.

- Outsiders: frames changed at random, to a mesh, on the whole path from the transport to the dispatch of messages:
  limits on unauthenticated peers, handshakes in every state, sessions.
- Members: batches changed at random, sealed properly, on the same path; and straight into the decoder.
  See ``benchmarks.fuzz_mesh``.
- Members of a whole node, with everything that it can do: see ``tests.support.hostile_stage``.

Every frame has to end in a message list or in the one error of the function that refused it.  Anything else, which a
node counts as an unexpected error, or a process that has grown by more than 64 MiB, is a failure.  A run is repeated
with its ``--seed``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar, final

import trio
from msgspec.msgpack import Ext
from trio.testing import MockClock

from benchmarks import fuzz_mesh
from iris.kernel import wire
from iris.kernel.errors import AuthenticationError, RemoteProtocolError
from iris.kernel.wire import kinds
from iris.kernel.wire.codec import BatchDecoder
from tests.support import hostile_stage
from tests.support.damage import malformed
from tests.support.messages import fields_of

F = TypeVar("F")

MEMORY_LIMIT: Final = 64 * 1024 * 1024


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of the frames of one run."""

    frames: int
    refused: Counter[str]
    accepted: int
    grown: int
    """Growth of memory at the worst moment since the start, in bytes."""
    seconds: float

    @property
    def unexpected(self) -> list[str]:
        """Errors that nobody expects, by what has brought them about: each has ended a link, and is a bug."""
        return sorted(reason for reason in self.refused if reason.startswith("unexpected error"))


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


def _run_on_network(
    attack: Callable[[int, int, Callable[[int], None]], Awaitable[F]],
    count: int,
    seed: int,
    progress: Callable[[int], None],
) -> tuple[F, int, float]:
    """Run an attack in virtual time; return what it found, how many bytes it grew by, and the seconds it took."""
    start = worst = 0

    def notice(number: int) -> None:
        nonlocal start, worst
        start = start or resident()
        worst = max(worst, resident() - start)
        progress(number)

    began = time.perf_counter()
    found = trio.run(attack, count, seed, notice, clock=MockClock(autojump_threshold=0))
    return found, worst, time.perf_counter() - began


def attack_from_outside(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Have unauthenticated peers send a mesh changed copies of genuine frames.  None may be accepted."""
    found, grown, seconds = _run_on_network(fuzz_mesh.attack_from_outside, count, seed, progress)
    return Outcome(frames=count, refused=found.refused, accepted=found.accepted, grown=grown, seconds=seconds)


def attack_as_member(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Have a member send a mesh malformed batches in proper frames.  What decodes is dispatched."""
    found, grown, seconds = _run_on_network(fuzz_mesh.attack_as_member, count, seed, progress)
    return Outcome(frames=count, refused=found.refused, accepted=found.accepted, grown=grown, seconds=seconds)


def attack_decoder(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Give malformed batches, and malformed payloads in them, straight to the decoders."""
    rng = random.Random(seed)
    decoder = BatchDecoder(*kinds.BY_KIND.values())
    batches = [fuzz_mesh.batch(rng) for _ in range(50)]

    def attempt() -> bool:
        for message in decoder.decode_untrusted(malformed(rng.choice(batches), rng)):
            for field in fields_of(message):
                if isinstance(field, (bytes, Ext)):
                    wire.decode_payload_untrusted(field)
        return True

    return _run(count, attempt, progress)


def attack_node(count: int, seed: int, progress: Callable[[int], None] = _silent) -> Outcome:
    """Have members of a realm send hostile messages of every kind to a whole node; whatever it does not refuse passes.

    What raises anything else, or keeps the node from its work, ends in that error.
    """
    found, grown, seconds = _run_on_network(hostile_stage.attack_node, count, seed, progress)
    accepted = max(0, found.messages - found.refused.total())
    return Outcome(frames=count, refused=found.refused, accepted=accepted, grown=grown, seconds=seconds)


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
        failed |= bool(outcome.unexpected)
        failed |= outcome.grown > MEMORY_LIMIT or (attack is attack_from_outside and outcome.accepted > 0)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
