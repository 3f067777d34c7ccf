"""Sessions: what is sealed opens once, in order, at the other end; everything else is refused and counted."""

from __future__ import annotations

import copy
import os
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]  # it is half typed
)

from iris.kernel.buffer_pool import borrow, give_back
from iris.kernel.config import Config
from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.kernel.wire import VERSION
from iris.kernel.wire.header import DATA, HEADER, HEADER_SIZE
from iris.security.channel import session as session_module
from iris.security.channel.session import EPOCH_FRAMES, MAX_EPOCH, MAX_EPOCH_SKIP, NONCE, Session, SessionStatistics
from iris.security.noise.handshake_state import CIPHERS
from iris.security.noise.suites import Suite
from tests.support.damage import damaged
from tests.support.sessions import INITIATOR_INDEX, RESPONDER_INDEX, sessions

SHORT_EPOCH = 8


@pytest.fixture
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a new key every few frames."""
    monkeypatch.setattr(session_module, "EPOCH_FRAMES", SHORT_EPOCH)


def with_keys(seal_key: bytes, open_key: bytes) -> Session:
    return Session(
        suite=Suite.AESGCM,
        indices=(RESPONDER_INDEX, INITIATOR_INDEX),
        seal_key=seal_key,
        open_key=open_key,
        established=0.0,
        config=Config(),
    )


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 65536, 1 << 20])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_sealed_opens_at_the_other_end(suite: Suite, size: int, kind: type) -> None:
    near, far = sessions(suite)
    body = random.Random(size).randbytes(size)
    frame = near.seal(kind(body))
    assert len(frame) == HEADER_SIZE + size + 16
    assert HEADER.unpack_from(frame) == (DATA, VERSION, 0, RESPONDER_INDEX, 0)
    assert far.open_untrusted(frame) == body
    assert near.open_untrusted(far.seal(kind(body))) == body


@pytest.mark.parametrize("suite", list(Suite))
def test_the_memory_of_a_large_body_is_used_again_once_it_was_given_back(suite: Suite) -> None:
    near, far = sessions(suite)
    bodies = [random.Random(number).randbytes(100_000 - number) for number in range(3)]
    first, second = (far.open_untrusted(near.seal(body)) for body in bodies[:2])
    assert [first, second] == bodies[:2]
    assert isinstance(first, memoryview)
    give_back(first)
    forged = bytearray(near.seal(bodies[2]))
    forged[5000] ^= 1
    with pytest.raises(AuthenticationError):
        far.open_untrusted(memoryview(forged))
    forged[5000] ^= 1
    assert far.open_untrusted(memoryview(forged)) == bodies[2]
    assert second == bodies[1]
    far.close()
    with pytest.raises(LocalProtocolError):
        far.open_untrusted(near.seal(bodies[0]))


@pytest.mark.parametrize("suite", list(Suite))
def test_forged_frames_take_no_memory_of_the_pool(suite: Suite) -> None:
    near, far = sessions(suite)
    frame = bytearray(near.seal(bytes(100_000)))
    frame[5000] ^= 1
    held = [borrow(40_000) for _ in range(100)]  # so that none is free but this one
    give_back(held[0])
    for _ in range(20):
        with pytest.raises(AuthenticationError):
            far.open_untrusted(memoryview(frame))
    assert borrow(40_000).obj is held[0].obj


@pytest.mark.parametrize("suite", list(Suite))
def test_the_memory_of_a_large_frame_is_used_again_once_it_was_given_back(suite: Suite) -> None:
    near, far = sessions(suite)
    bodies = [random.Random(number).randbytes(100_000 - number) for number in range(3)]
    first, second = (near.seal(body) for body in bodies[:2])
    assert far.open_untrusted(first) == bodies[0]
    assert isinstance(first, memoryview)
    give_back(first)
    third = near.seal(bodies[2])
    assert isinstance(third, memoryview)
    assert third.obj is first.obj
    assert [far.open_untrusted(frame) for frame in (second, third)] == bodies[1:]
    near.close()
    with pytest.raises(LocalProtocolError):
        near.seal(bodies[0])


def test_equal_bodies_look_different_each_time_and_in_each_direction() -> None:
    near, far = sessions()
    frames = [near.seal(b"x" * 64)[HEADER_SIZE:] for _ in range(100)]
    frames += [far.seal(b"x" * 64)[HEADER_SIZE:] for _ in range(100)]
    assert len(set(frames)) == 200


def test_a_repeat_is_refused_and_counted() -> None:
    near, far = sessions()
    frame = near.seal(b"once")
    far.open_untrusted(frame)
    for repeats in range(1, 4):
        with pytest.raises(AuthenticationError, match="repeats or comes late"):
            far.open_untrusted(frame)
        assert far.statistics().replayed_frames == repeats
    assert far.statistics().received_frames == 1


def test_a_forged_frame_changes_nothing_but_a_counter() -> None:
    near, far = sessions()
    forged = bytearray(near.seal(b"x"))
    forged[8:16] = (2**63).to_bytes(8, "big")  # a gap of half of all numbers, if it were believed
    before = far.statistics()
    with pytest.raises(AuthenticationError, match="not genuine"):
        far.open_untrusted(bytes(forged))
    after = far.statistics()
    assert after.refused_frames == before.refused_frames + 1
    assert (after.lost_frames, after.received_frames, after.received_epoch) == (0, 0, 0)
    assert far.open_untrusted(near.seal(b"y")) == b"y"


@pytest.mark.parametrize("suite", list(Suite))
def test_every_byte_of_a_frame_counts(suite: Suite) -> None:
    near, far = sessions(suite)
    near.seal(b"")
    frame = near.seal(b"some words")
    for position in range(len(frame)):
        for bit in range(8):
            forged = bytearray(frame)
            forged[position] ^= 1 << bit
            with pytest.raises(AuthenticationError):
                far.open_untrusted(bytes(forged))
    assert far.open_untrusted(frame) == b"some words"


def test_every_truncation_and_extension_is_refused() -> None:
    near, far = sessions()
    frame = near.seal(b"some words")
    for size in range(len(frame)):
        with pytest.raises(AuthenticationError):
            far.open_untrusted(frame[:size])
    with pytest.raises(AuthenticationError):
        far.open_untrusted(bytes(frame) + b"\0")
    assert far.statistics().refused_frames == len(frame) + 1


def test_a_frame_reflected_to_its_sender_is_refused() -> None:
    near, far = sessions()
    frame = bytearray(near.seal(b"x"))
    with pytest.raises(AuthenticationError):
        near.open_untrusted(bytes(frame))
    frame[4:8] = INITIATOR_INDEX.to_bytes(4, "big")
    with pytest.raises(AuthenticationError):
        near.open_untrusted(bytes(frame))
    assert far.statistics().received_frames == 0


def test_a_frame_of_another_session_of_the_same_nodes_is_refused() -> None:
    near, _ = sessions(seed=1)
    _, far = sessions(seed=2)
    with pytest.raises(AuthenticationError):
        far.open_untrusted(near.seal(b"x"))


ATTACKS = ("replayed", "reflected", "truncated", "spliced", "damaged")


def redirected(frame: bytes, counter: int) -> bytes:
    """Return a frame of either direction with the header of one that its receiver could take."""
    return HEADER.pack(DATA, VERSION, 0, RESPONDER_INDEX, counter) + frame[HEADER_SIZE:]


def hostile_frame(attack: str, seen: list[bytes], coming: list[bytes], back: list[bytes], rng: random.Random) -> bytes:
    """Return what an attacker makes of recorded frames.

    One in ten stands as it was recorded, and is mostly refused for its number, its receiver or its size.  The others
    pass for a frame that the receiver waits for in everything but the seal: only the cipher can refuse them.

    Args:
        seen: frames that the receiver has had; their numbers are used up.
        coming: those that it waits for.
        back: those that it has sent.
    """
    plain = rng.random() < 0.1
    counter = len(seen) + rng.randrange(2 * len(coming))
    frame = rng.choice(coming)
    match attack:
        case "replayed":
            old = rng.choice(seen)
            return old if plain else redirected(old, counter)
        case "reflected":
            own = rng.choice(back)
            return own if plain else redirected(own, counter)
        case "truncated":
            return frame[: rng.randrange(0 if plain else HEADER_SIZE + 16, len(frame))]
        case "spliced":
            other = rng.choice(rng.choice((seen, coming, back)))
            cut = rng.randrange(1 if plain else HEADER_SIZE, min(len(frame), len(other)))
            return frame[:cut] + other[cut:]
        case _:
            return damaged(frame, rng) if plain else frame[:HEADER_SIZE] + damaged(frame[HEADER_SIZE:], rng)


@pytest.mark.parametrize("suite", list(Suite))
def test_none_of_100_000_replayed_reflected_truncated_or_spliced_frames_is_accepted(suite: Suite) -> None:
    """Of each sort at least 85 of 100 get as far as the cipher, 90 of 100 in all, and are refused there."""
    rng = random.Random(42)
    near, far = sessions(suite)
    seen, coming = ([bytes(near.seal(rng.randbytes(rng.randrange(1, 200)))) for _ in range(200)] for _ in range(2))
    back = [bytes(far.seal(rng.randbytes(rng.randrange(1, 200)))) for _ in range(200)]
    for frame in seen:
        far.open_untrusted(frame)
    genuine = set(coming)
    count = 50_000
    made: Counter[str] = Counter()
    deciphered: Counter[str] = Counter()
    while made.total() < count:
        attack = ATTACKS[made.total() % len(ATTACKS)]
        frame = hostile_frame(attack, seen, coming, back, rng)
        if frame in genuine:
            continue
        made[attack] += 1
        try:
            far.open_untrusted(frame)
        except AuthenticationError as error:
            deciphered[attack] += str(error).endswith("is not genuine")  # what the cipher says
        else:
            raise AssertionError(f"a {attack} frame was accepted: {frame.hex()}")
    assert set(made.values()) == {count // len(ATTACKS)}
    assert all(deciphered[attack] > 0.85 * made[attack] for attack in ATTACKS), deciphered
    assert deciphered.total() > 0.9 * count, deciphered
    figures = far.statistics()
    assert figures.received_frames == len(seen)
    assert figures.lost_frames == 0
    assert figures.replayed_frames + figures.refused_frames == count
    for frame in coming:
        far.open_untrusted(frame)
    assert far.lost_frames == 0, "one of them has changed what the receiver waits for"


# -- keys change ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_epochs")
@pytest.mark.parametrize("suite", list(Suite))
def test_the_key_changes_after_so_many_frames(suite: Suite) -> None:
    near, far = sessions(suite)
    for number in range(SHORT_EPOCH * 3):
        frame = near.seal(b"%d" % number)
        assert HEADER.unpack_from(frame)[2] == number // SHORT_EPOCH
        assert far.open_untrusted(frame) == b"%d" % number
    assert near.statistics().sent_epoch == far.statistics().received_epoch == 2
    assert near.statistics().received_epoch == far.statistics().sent_epoch == 0


def test_the_key_changes_after_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "EPOCH_BYTES", 1000)
    near, far = sessions()
    epochs: list[int] = []
    for _ in range(10):
        frame = near.seal(bytes(300))
        far.open_untrusted(frame)
        epochs.append(HEADER.unpack_from(frame)[2])
    assert epochs == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_the_limits_of_a_key_are_those_of_the_protocol_document() -> None:
    assert (EPOCH_FRAMES, session_module.EPOCH_BYTES, MAX_EPOCH) == (65536, 1 << 30, 65535)
    near, far = sessions()
    for _ in range(EPOCH_FRAMES - 1):
        near.seal(b"")
    far.open_untrusted(near.seal(b"the last one with the first key"))
    assert near.statistics().sent_epoch == 0
    frame = near.seal(b"the first one with the second key")
    assert HEADER.unpack_from(frame)[2:] == (1, RESPONDER_INDEX, 65536)
    assert far.open_untrusted(frame) == b"the first one with the second key"


@pytest.mark.usefixtures("short_epochs")
def test_a_forged_epoch_does_not_move_the_receiver() -> None:
    near, far = sessions()
    frame = bytearray(near.seal(b"x"))
    for epoch in (*range(1, 300), *range(300, 2**16, 97), 2**16 - 1):
        frame[2:4] = epoch.to_bytes(2, "big")
        with pytest.raises(AuthenticationError):
            far.open_untrusted(bytes(frame))
    assert far.statistics().received_epoch == 0
    for number in range(3 * SHORT_EPOCH):
        assert far.open_untrusted(near.seal(b"%d" % number)) == b"%d" % number


@pytest.mark.usefixtures("short_epochs")
def test_whole_epochs_may_be_lost_up_to_a_limit() -> None:
    near, far = sessions()
    for _ in range(MAX_EPOCH_SKIP * SHORT_EPOCH):
        near.seal(b"")
    assert far.open_untrusted(near.seal(b"x")) == b"x"
    assert far.statistics().received_epoch == MAX_EPOCH_SKIP
    assert far.lost_frames == MAX_EPOCH_SKIP * SHORT_EPOCH
    for _ in range((MAX_EPOCH_SKIP + 1) * SHORT_EPOCH):
        near.seal(b"")
    with pytest.raises(AuthenticationError, match="epoch 33"):
        far.open_untrusted(near.seal(b"x"))


@pytest.mark.usefixtures("short_epochs")
def test_an_old_key_opens_nothing_any_more() -> None:
    near, far = sessions()
    for _ in range(SHORT_EPOCH + 1):
        far.open_untrusted(near.seal(b""))
    old = bytearray(near.seal(b""))
    old[2:4] = bytes(2)
    with pytest.raises(AuthenticationError, match="epoch 0"):
        far.open_untrusted(bytes(old))


@pytest.mark.usefixtures("short_epochs")
def test_a_session_ends_when_its_epochs_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_EPOCH", 3)
    near, _ = sessions()
    for _ in range(4 * SHORT_EPOCH):
        near.seal(b"")
    for _ in range(2):
        with pytest.raises(LocalProtocolError, match="used up its epochs"):
            near.seal(b"")


# -- errors, ends ---------------------------------------------------------------------------------------------


def test_an_error_while_sealing_costs_a_number_and_never_repeats_one() -> None:
    near, far = sessions()
    with pytest.raises(TypeError):
        near.seal([1, 2, 3])  # type: ignore[arg-type]
    frame = near.seal(b"x")
    assert HEADER.unpack_from(frame)[4] == 1
    assert far.open_untrusted(frame) == b"x"
    assert far.lost_frames == 1


@pytest.mark.usefixtures("short_epochs")
@pytest.mark.parametrize("sealed", [0, SHORT_EPOCH])
def test_a_closed_session_seals_and_opens_nothing(sealed: int) -> None:
    """Also when the next frame would have begun an epoch."""
    near, far = sessions()
    for _ in range(sealed):
        near.seal(b"")
    frame = far.seal(b"x")
    near.close()
    near.close()
    assert near.closed
    assert not far.closed
    with pytest.raises(LocalProtocolError, match="closed"):
        near.seal(b"x")
    with pytest.raises(LocalProtocolError, match="closed"):
        near.open_untrusted(frame)
    with pytest.raises(LocalProtocolError, match="closed"):
        near.open_untrusted(b"".join((frame[:2], b"\0\1", frame[4:])))
    assert "closed" in repr(near)


def test_a_session_tells_when_to_refuse_it() -> None:
    near, _ = sessions(now=1000.0)
    assert not near.expired(1179.9)
    assert near.expired(1180.0)
    near, _ = sessions(config=Config(session_lifetime=5.0, session_rejected=7.0), now=1000.0)
    assert near.expired(1007.0)


def test_a_session_is_not_copied_and_shows_no_keys() -> None:
    keys = bytes(range(32)), bytes(range(32, 64))
    near = with_keys(*keys)
    for key in keys:
        assert key.hex() not in repr(near)
        assert repr(key) not in repr(near)
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(near)


def test_statistics_add_up() -> None:
    near, far = sessions()
    for number in range(10):
        frame = near.seal(bytes(number))
        if number % 3:
            far.open_untrusted(frame)
    far.open_untrusted(near.seal(b""))
    assert near.statistics() == SessionStatistics(
        sent_frames=11,
        sent_bytes=45,
        received_frames=0,
        received_bytes=0,
        lost_frames=0,
        replayed_frames=0,
        refused_frames=0,
        sent_epoch=0,
        received_epoch=0,
    )
    figures = far.statistics()
    assert figures.received_frames + figures.lost_frames == 11
    assert figures.received_bytes == 45 - 0 - 3 - 6 - 9


class Conversation(RuleBasedStateMachine):
    """Two ends and a network that loses, repeats, delays and damages, against a model of what may be received."""

    @initialize(suite=st.sampled_from(list(Suite)))
    def begin(self, suite: Suite) -> None:
        self.near, self.far = sessions(suite)
        self.in_transit: list[tuple[int, bytes, bytes]] = []
        self.sent = 0
        self.next = 0
        self.received = 0

    @rule(body=st.binary(max_size=50))
    def seal(self, body: bytes) -> None:
        self.in_transit.append((self.sent, body, bytes(self.near.seal(body))))
        self.sent += 1

    @precondition(lambda self: self.in_transit)
    @rule(data=st.data(), keep=st.booleans())
    def deliver(self, data: st.DataObject, keep: bool) -> None:
        position = data.draw(st.integers(0, len(self.in_transit) - 1))
        number, body, frame = self.in_transit[position] if keep else self.in_transit.pop(position)
        if number >= self.next:
            assert self.far.open_untrusted(frame) == body
            self.next = number + 1
            self.received += 1
        else:
            with pytest.raises(AuthenticationError):
                self.far.open_untrusted(frame)

    @precondition(lambda self: self.in_transit)
    @rule(seed=st.integers(0, 2**32))
    def forge(self, seed: int) -> None:
        rng = random.Random(seed)
        _, _, frame = rng.choice(self.in_transit)
        forged = damaged(frame, rng)
        if forged != frame:
            with pytest.raises(AuthenticationError):
                self.far.open_untrusted(forged)

    @invariant()
    def counters_hold(self) -> None:
        if not hasattr(self, "far"):
            return
        assert self.far.lost_frames == self.next - self.received
        assert self.far.statistics().received_frames == self.received


@pytest.mark.usefixtures("short_epochs")
def test_a_network_that_loses_repeats_delays_and_damages_changes_no_message() -> None:
    """With keys that change every eight frames."""
    few = settings(max_examples=60, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(Conversation, settings=few)


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_an_authentication_error(data: bytes) -> None:
    _, far = sessions()
    with pytest.raises(AuthenticationError):
        far.open_untrusted(data)


def test_a_million_numbers_apart_is_no_trouble() -> None:
    key = bytes(range(32))
    far = with_keys(bytes(32), key)
    header = HEADER.pack(DATA, VERSION, 0, RESPONDER_INDEX, 2**40)
    frame = header + CIPHERS["AESGCM"](key).encrypt(NONCE[Suite.AESGCM].pack(2**40), b"x", header)
    assert far.open_untrusted(frame) == b"x"
    assert far.lost_frames == 2**40


def test_the_process_entropy_is_not_needed_to_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nonces are counters: a bad random source after the handshake harms nothing."""
    near, far = sessions()
    monkeypatch.setattr(os, "urandom", bytes)
    assert far.open_untrusted(near.seal(b"x")) == b"x"
