"""Carried frames in a batch: found where they are, and nothing else taken for one."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.routes.envelope import (
    BEGIN,
    HOPS_AT,
    Envelope,
    Flows,
    begin_batch,
    end_batch,
    find_envelope,
    find_frame,
    open_envelope,
)
from iris.kernel import wire
from iris.kernel.wire import kinds
from tests.support.messages import raw

NODE, OTHER = bytes(range(16)), bytes(range(16, 32))
EU_TO_US = Envelope("us", NODE, "eu", OTHER)

sites = st.text(string.ascii_lowercase + "-é", max_size=31).filter(lambda text: len(text.encode()) < 32)
nodes = st.binary(min_size=16, max_size=16)
envelopes = st.builds(Envelope, sites, nodes, sites, nodes)
frames = st.binary(max_size=70_000)
hops = st.integers(0, 127)


def batch_of(envelope: Envelope, frame: bytes, number: int = 16) -> bytes:
    return bytes(wire.encode_batch([raw(kinds.Carry, number, *envelope, frame)]))


@given(envelopes, frames, hops)
def test_what_stands_in_a_batch_is_found(envelope: Envelope, frame: bytes, number: int) -> None:
    batch = batch_of(envelope, frame, number)
    end = find_envelope(batch)
    assert end is not None
    assert open_envelope(batch[BEGIN:end]) == envelope
    assert batch[find_frame(batch, end) :] == frame
    assert batch[HOPS_AT] == number


@given(envelopes, frames, hops)
def test_a_batch_made_by_hand_is_the_ordinary_one(envelope: Envelope, frame: bytes, number: int) -> None:
    assert end_batch(begin_batch(envelope, number), frame) == batch_of(envelope, frame, number)


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_the_largest_frames_are_found(kind: type) -> None:
    flows = Flows[str]()
    for size in (255, 256, 65_535, 65_536, 2**20):
        plain = batch_of(EU_TO_US, bytes(size))
        assert end_batch(begin_batch(EU_TO_US, 16), bytes(size)) == plain
        batch = kind(plain)
        found = flows.look(batch)
        assert found is not None
        assert found == (plain[BEGIN : find_envelope(plain)], None if size == 255 else "known", len(plain) - size)
        flows.remember(found[0], "known")
        end = find_envelope(batch)
        assert end is not None
        assert len(batch) - find_frame(batch, end) == size


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        bytes(wire.encode_batch([raw(kinds.Carry, 16, *EU_TO_US, b"x")] * 2)),
        bytes(wire.encode_batch([raw(kinds.CarryRefused, 16, *EU_TO_US, 1)])),
        bytes(wire.encode_batch([raw(kinds.Carry, 16, *EU_TO_US)])),
        bytes(wire.encode_batch([raw(kinds.Carry, 16, *EU_TO_US, "text")])),
        bytes(wire.encode_batch([kinds.Carry(16, "us", NODE[:15], "eu", OTHER, b"x")])),
        bytes(wire.encode_batch([raw(kinds.Carry, 16, b"us", NODE, "eu", OTHER, b"x")])),
        bytes(wire.encode_batch([kinds.Carry(16, "us" * 20, NODE, "eu", OTHER, b"x")])),
        batch_of(EU_TO_US, b"x") + b"\xc0",
        batch_of(EU_TO_US, b"xyz")[:-1],
    ],
)
def test_anything_else_goes_the_ordinary_way(batch: bytes) -> None:
    assert find_envelope(batch) is None
    assert Flows[int]().look(batch) is None


@given(st.one_of(st.binary(max_size=200), st.binary().map(b"\x97\x60".__add__)))
def test_no_bytes_are_an_error(batch: bytes) -> None:
    found = Flows[int]().look(batch)
    if found is not None:
        envelope, _, begin = found
        told = open_envelope(envelope)
        assert told is None or batch_of(told, batch[begin:])[BEGIN:] == batch[BEGIN:]


@given(envelopes, st.integers(0, 70), st.integers(1, 255))
def test_a_batch_that_is_cut_or_changed_is_no_error(envelope: Envelope, place: int, flip: int) -> None:
    batch = bytearray(batch_of(envelope, b"frame"))
    cut = bytes(batch[: place % len(batch)])
    assert find_envelope(cut) is None
    batch[place % len(batch)] ^= flip
    found = Flows[int]().look(bytes(batch))
    assert found is None or found[2] <= len(batch)


def test_a_site_that_is_no_text_is_none() -> None:
    batch = batch_of(Envelope("us", NODE, "eu", OTHER), b"x").replace(b"us", b"\xff\xff")
    end = find_envelope(batch)
    assert end is not None
    assert open_envelope(batch[BEGIN:end]) is None


@given(st.lists(envelopes, min_size=1, max_size=8, unique=True), st.lists(st.integers(0, 7), max_size=30))
def test_flows_are_told_apart(several: list[Envelope], order: list[int]) -> None:
    flows: Flows[Envelope] = Flows()
    seen: set[Envelope] = set()
    for number in order:
        envelope = several[number % len(several)]
        found = flows.look(batch_of(envelope, b"frame"))
        assert found is not None
        packed, known, _ = found
        assert known == (envelope if envelope in seen else None)
        flows.remember(packed, envelope)
        seen.add(envelope)
    assert len(flows) == len(seen)


def test_a_flow_whose_frame_does_not_fill_the_batch_is_not_taken_for_a_known_one() -> None:
    flows: Flows[str] = Flows()
    batch = batch_of(EU_TO_US, b"frame")
    found = flows.look(batch)
    assert found is not None
    flows.remember(found[0], "known")
    assert flows.look(batch) == (found[0], "known", len(batch) - 5)
    assert flows.look(batch + b"\xc0") is None
    assert flows.look(b"\x96" + batch[1:]) is None
    flows.forget(found[0])
    assert flows.look(batch) == (found[0], None, len(batch) - 5)
    flows.remember(found[0], "again")
    flows.clear()
    assert len(flows) == 0


def test_of_too_many_flows_all_are_forgotten() -> None:
    flows: Flows[int] = Flows()
    for number in range(5_000):
        flows.remember(number.to_bytes(4), number)
    assert 0 < len(flows) <= 4_096
