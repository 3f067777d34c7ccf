"""One frame for several receivers: who opens it, and what is refused."""

from __future__ import annotations

import copy

import pytest

from iris.kernel.errors import AuthenticationError, LocalProtocolError
from iris.security.channel.sender_key import ReceiverKey, SendingKey, read_copy_header_untrusted
from iris.security.identity import signing
from iris.security.identity.signing import SigningKey
from iris.security.noise.suites import Suite
from iris.security.secret import Secret

KEY = Secret(bytes(range(32)))
SIGNER = SigningKey(bytes(range(1, 33)))


def sign(claim: bytes) -> bytes:
    return SIGNER.sign(signing.CLAIM, claim)


def verify(claim: bytes, signature: bytes) -> None:
    signing.verify_untrusted(SIGNER.public, signing.CLAIM, claim, signature, "a copy")


def pair(suite: Suite = Suite.AESGCM) -> tuple[SendingKey, ReceiverKey]:
    return SendingKey(7, KEY, suite), ReceiverKey(suite, KEY)


@pytest.mark.parametrize("suite", list(Suite))
def test_every_receiver_opens_the_same_frame(suite: Suite) -> None:
    sender = SendingKey(7, KEY, suite)
    receivers = [ReceiverKey(suite, KEY) for _ in range(3)]
    for number in (1, 2, 5):
        frame = sender.seal(b"batch %d" % number, number, sign)
        assert read_copy_header_untrusted(frame)[:2] == (7, number)
        assert [receiver.open_untrusted(frame, verify) for receiver in receivers] == [b"batch %d" % number] * 3
    assert [receiver.lost for receiver in receivers] == [0, 0, 0]
    assert sender.frames == 3


def test_a_frame_that_is_missing_shows_though_others_were_numbered_between() -> None:
    sender, receiver = pair()
    first, second, third = (sender.seal(b"x", number, sign) for number in (3, 8, 9))
    receiver.open_untrusted(first, verify)
    assert receiver.lost == 0
    receiver.open_untrusted(third, verify)
    assert receiver.lost == 1
    with pytest.raises(AuthenticationError, match="repeats or comes late"):
        receiver.open_untrusted(second, verify)


def test_the_first_frames_may_be_missing_too() -> None:
    sender, receiver = pair()
    sender.seal(b"lost", 1, sign)
    assert receiver.open_untrusted(sender.seal(b"x", 2, sign), verify) == b"x"
    assert receiver.lost == 1


def test_a_frame_is_taken_once() -> None:
    sender, receiver = pair()
    frame = sender.seal(b"x", 1, sign)
    receiver.open_untrusted(frame, verify)
    with pytest.raises(AuthenticationError, match="repeats"):
        receiver.open_untrusted(frame, verify)


def test_a_receiver_cannot_make_up_frames_for_the_others() -> None:
    _, receiver = pair()
    insider = SigningKey(bytes(range(2, 34)))
    forged = SendingKey(7, KEY, Suite.AESGCM).seal(b"forged", 1, lambda claim: insider.sign(signing.CLAIM, claim))
    with pytest.raises(AuthenticationError):
        receiver.open_untrusted(forged, verify)
    sender, _ = pair()
    assert receiver.open_untrusted(sender.seal(b"genuine", 1, sign), verify) == b"genuine"


def test_each_changed_byte_and_each_cut_is_refused_and_changes_nothing() -> None:
    sender, receiver = pair()
    frame = sender.seal(b"batch", 1, sign)
    for at in range(len(frame)):
        broken = bytearray(frame)
        broken[at] ^= 1
        with pytest.raises(AuthenticationError):
            receiver.open_untrusted(bytes(broken), verify)
        with pytest.raises(AuthenticationError):
            receiver.open_untrusted(frame[:at], verify)
    assert receiver.open_untrusted(frame, verify) == b"batch"


def test_another_key_opens_nothing() -> None:
    sender, _ = pair()
    with pytest.raises(AuthenticationError, match="not genuine"):
        ReceiverKey(Suite.AESGCM, bytes(32)).open_untrusted(sender.seal(b"x", 1, sign), verify)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_has_its_size(size: int) -> None:
    with pytest.raises(AuthenticationError, match="32 bytes"):
        ReceiverKey(Suite.AESGCM, bytes(size))


@pytest.mark.parametrize("suite", [0, 3, -1, 2**70])
def test_a_key_has_a_suite(suite: int) -> None:
    with pytest.raises(AuthenticationError, match="no suite"):
        ReceiverKey(suite, KEY)


def test_keys_are_not_shown_or_copied() -> None:
    for key in pair():
        assert KEY.hex() not in repr(key)
        with pytest.raises(TypeError):
            copy.copy(key)


def test_a_key_is_of_no_use_after_a_fork() -> None:
    sender, _ = pair()
    sender.poison()
    with pytest.raises(LocalProtocolError, match="forked"):
        sender.seal(b"x", 1, sign)
