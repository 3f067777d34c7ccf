"""A slice of ``python -m benchmarks.fuzz_frames``.

IRIS_FUZZ_FRAMES, IRIS_FUZZ_MESSAGES and IRIS_FUZZ_BATCHES make it longer.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import trio
from trio.testing import MockClock

from benchmarks import fuzz_mesh
from benchmarks.fuzz_frames import (
    MEMORY_LIMIT,
    Outcome,
    attack_as_member,
    attack_decoder,
    attack_from_outside,
    attack_node,
)
from iris.kernel.wire import kinds
from tests.support import hostile_stage

FRAMES = int(os.environ.get("IRIS_FUZZ_FRAMES", "10000"))
MESSAGES = int(os.environ.get("IRIS_FUZZ_MESSAGES", "1500"))
BATCHES = int(os.environ.get("IRIS_FUZZ_BATCHES", "50000"))
SEED = int(os.environ.get("IRIS_FUZZ_SEED", "7"))


def check(outcome: Outcome, count: int) -> None:
    assert outcome.frames == count
    assert not outcome.unexpected, f"seed {SEED}: {outcome}"
    assert outcome.grown < MEMORY_LIMIT, f"seed {SEED}: {outcome}"
    assert sum(outcome.refused.values()) > count / 2, f"seed {SEED}: {outcome}"


def test_no_changed_frame_from_outside_is_accepted_by_a_mesh() -> None:
    outcome = attack_from_outside(FRAMES, SEED)
    check(outcome, FRAMES)
    assert outcome.accepted == 0
    # Those that are not counted are first frames with another header, which is no part of what is sealed.
    assert 0.98 * FRAMES < outcome.refused.total() <= FRAMES, f"seed {SEED}: {outcome}"
    # Most get past the header, to what only a cipher can detect.
    assert outcome.refused["AuthenticationError"] > FRAMES / 3, f"seed {SEED}: {outcome}"
    for reason in ("RemoteProtocolError", "unknown session", "unknown handshake"):
        assert outcome.refused[reason] > 0, f"seed {SEED}: {outcome}"


def test_malformed_batches_of_members_are_dispatched_or_refused_by_one_error() -> None:
    outcome = attack_as_member(FRAMES, SEED)
    check(outcome, FRAMES)
    assert outcome.accepted > 0
    of_messages = [reason for reason in outcome.refused if reason.startswith("message of ")]
    # A frame may be on its way behind a goodbye, which ends the session.
    others = {"RemoteProtocolError", "unknown session", "frame of a peer that is gone"}
    assert set(outcome.refused) - set(of_messages) <= others, f"{SEED}: {outcome}"


def test_the_decoders_refuse_malformed_bytes_by_one_error() -> None:
    outcome = attack_decoder(BATCHES, SEED)
    check(outcome, BATCHES)
    assert set(outcome.refused) == {"RemoteProtocolError"}


def test_a_whole_node_refuses_hostile_messages_of_every_kind_and_works_on() -> None:
    """What is not refused by the one error would end the node, were it not for what catches every error."""
    outcome = attack_node(MESSAGES, SEED)
    assert not outcome.unexpected, f"seed {SEED}: {outcome}"
    assert outcome.grown < MEMORY_LIMIT, f"seed {SEED}: {outcome}"
    assert outcome.refused.total() > MESSAGES / 3, f"seed {SEED}: {outcome}"
    refused = {reason.rpartition(" ")[2] for reason in outcome.refused if reason.startswith("message of kind")}
    assert len(refused) > 12, f"what has the form of a message, and says what cannot be: seed {SEED}: {outcome}"
    assert outcome.refused["RemoteProtocolError"] > MESSAGES / 3


def test_every_kind_of_message_is_sent_changed_and_nearly_every_one_comes_to_its_receiver() -> None:
    shown: list[int] = []
    found = trio.run(hostile_stage.attack_node, 1_000, SEED, shown.append, clock=MockClock(autojump_threshold=0))
    every = set(kinds.BY_KIND.values())
    assert found.sent | {kinds.Goodbye} == every  # goodbyes are rare: 1 of 20 of what would be their share
    assert shown == sorted(shown)
    assert len(found.recorded) > 0.9 * len(every)


def test_a_run_is_repeated_by_its_seed() -> None:
    first, second = (attack_from_outside(500, 3) for _ in range(2))
    assert (first.refused, first.accepted) == (second.refused, second.accepted)


async def test_the_frames_that_are_changed_are_genuine(autojump_clock: MockClock) -> None:
    """Else the runs above would prove nothing: unchanged, each is taken."""
    async with fuzz_mesh.open_stage(SEED) as stage:
        victim, rng = stage.victim, random.Random(SEED)
        peer = await stage.link()
        async with fuzz_mesh.open_round(stage, peer, rng) as (data, first, response, last):
            way = stage.connect(stage.network.transport("honest"))
            for frames, begun in ((data, 0), (first, 1), (response, 0), (last, 0)):
                before, refused, under_way = stage.accepted, Counter(victim.refusals), victim.statistics().half_open
                for frame in frames:
                    way.send_nowait(frame)
                    await trio.sleep(0.01)
                if begun:
                    assert victim.statistics().half_open == under_way + 1
                else:
                    assert stage.accepted > before
                # what is in the data makes no sense; as frames they are genuine
                assert not (Counter(victim.refusals) - refused).keys() - {"RemoteProtocolError"}
        assert {other.cluster for other in (peer.identity for peer in victim.peers.values())} == {"billing", "third"}


async def test_every_changed_frame_differs_from_the_genuine_one(autojump_clock: MockClock) -> None:
    async with fuzz_mesh.open_stage(SEED) as stage:
        rng = random.Random(SEED)
        async with fuzz_mesh.open_round(stage, await stage.link(), rng) as genuine:
            frames = {frame for sort in genuine for frame in sort}
            assert all(fuzz_mesh.forged(genuine, rng) not in frames for _ in range(2000))
