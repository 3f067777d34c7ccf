"""A slice of ``python -m benchmarks.fuzz_frames``.

IRIS_FUZZ_FRAMES, IRIS_FUZZ_MESSAGES and IRIS_FUZZ_BATCHES make it longer.
"""

from __future__ import annotations

import os

import pytest
import trio
from trio.testing import MockClock

from benchmarks import fuzz_node
from benchmarks.fuzz_frames import (
    MEMORY_LIMIT,
    Outcome,
    Victim,
    attack_as_member,
    attack_decoder,
    attack_from_outside,
    attack_node,
)
from iris.kernel import kinds
from iris.kernel.wire import encode_batch

FRAMES = int(os.environ.get("IRIS_FUZZ_FRAMES", "10000"))
MESSAGES = int(os.environ.get("IRIS_FUZZ_MESSAGES", "1500"))
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


def test_a_whole_node_refuses_hostile_messages_of_every_kind_and_works_on() -> None:
    """What is not refused by the one error ends the node, and with it this test."""
    outcome = attack_node(MESSAGES, SEED)
    assert outcome.grown < MEMORY_LIMIT, f"seed {SEED}: {outcome}"
    assert outcome.refused.total() > MESSAGES / 3, f"seed {SEED}: {outcome}"
    refused = {int(reason.rpartition(" ")[2], 16) for reason in outcome.refused if reason.startswith("message of kind")}
    groups = {kind >> 4 for kind in refused}  # links, requests, broadcasts, events, tunnels, sites
    assert groups == {0, 2, 3, 4, 5, 6}, f"seed {SEED}: {outcome}"  # membership has books of its own
    assert len(refused) > 20, f"seed {SEED}: {outcome}"
    assert outcome.refused["RemoteProtocolError"] > 0
    assert outcome.refused["message of unknown kind or length"] > 0


def test_every_kind_of_message_is_sent_changed_and_nearly_every_one_was_seen_before() -> None:
    shown: list[int] = []
    found = trio.run(fuzz_node.attack_node, 500, SEED, shown.append, clock=MockClock(autojump_threshold=0))
    every = {value for name, value in vars(kinds).items() if name.isupper()}
    assert found.sent | {kinds.GOODBYE} == every  # goodbyes are rare: 1 of 20 of what would be their share
    assert shown == sorted(shown)
    assert len(found.recorded) > 0.7 * len(every)


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
