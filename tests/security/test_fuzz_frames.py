"""A slice of ``python -m benchmarks.fuzz_frames``; IRIS_FUZZ_FRAMES and IRIS_FUZZ_BATCHES make it longer."""

from __future__ import annotations

import os

import pytest

from benchmarks.fuzz_frames import (
    MEMORY_LIMIT,
    Outcome,
    Victim,
    attack_as_member,
    attack_decoder,
    attack_from_outside,
)
from iris.kernel.wire import encode_batch

FRAMES = int(os.environ.get("IRIS_FUZZ_FRAMES", "10000"))
BATCHES = int(os.environ.get("IRIS_FUZZ_BATCHES", "50000"))
SEED = int(os.environ.get("IRIS_FUZZ_SEED", "7"))


def check(outcome: Outcome, count: int) -> None:
    assert outcome.frames == count
    assert outcome.grown < MEMORY_LIMIT, f"seed {SEED}: {outcome}"
    assert sum(outcome.refused.values()) > count / 2, f"seed {SEED}: {outcome}"


def test_no_changed_frame_from_outside_is_accepted_and_each_is_refused_by_one_error() -> None:
    outcome = attack_from_outside(FRAMES, SEED)
    check(outcome, FRAMES)
    assert outcome.accepted == 0
    assert set(outcome.refused) == {"AuthenticationError", "RemoteProtocolError"}


def test_malformed_batches_of_members_are_messages_or_refused_by_one_error() -> None:
    outcome = attack_as_member(FRAMES, SEED)
    check(outcome, FRAMES)
    assert set(outcome.refused) == {"RemoteProtocolError"}


def test_the_decoders_refuse_malformed_bytes_by_one_error() -> None:
    outcome = attack_decoder(BATCHES, SEED)
    check(outcome, BATCHES)
    assert set(outcome.refused) == {"RemoteProtocolError"}


def test_a_run_is_repeated_by_its_seed() -> None:
    first, second = (attack_from_outside(500, 3) for _ in range(2))
    assert (first.refused, first.accepted) == (second.refused, second.accepted)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_victim_accepts_what_is_genuine(position: int) -> None:
    """Else the runs above would prove nothing."""
    victim = Victim(SEED)
    if position == 0:
        assert victim.receive(victim.attacker.seal(encode_batch([(1, 2)])))
    else:
        assert victim.receive(victim.genuine[2 + position])
