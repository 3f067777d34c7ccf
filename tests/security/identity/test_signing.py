from __future__ import annotations

import copy

import pytest

from iris.kernel.errors import AuthenticationError
from iris.security.identity import signing
from iris.security.identity.signing import SigningKey, detach_untrusted, verify_untrusted
from tests.support.realms import seeded_entropy

DOMAINS = [signing.CERTIFICATE, signing.DELEGATION, signing.REVOCATION, signing.CLAIM, signing.BUNDLE]


def key(seed: int = 1) -> SigningKey:
    return SigningKey(seeded_entropy(seed)(32))


def test_a_signature_verifies_for_its_message_and_purpose_only() -> None:
    signature = key().sign(signing.CLAIM, b"message")
    verify_untrusted(key().public, signing.CLAIM, b"message", signature, "claim")
    for public, domain, message in [
        (key(2).public, signing.CLAIM, b"message"),
        (key().public, signing.DELEGATION, b"message"),
        (key().public, signing.CLAIM, b"other"),
    ]:
        with pytest.raises(AuthenticationError, match="claim: the signature is not valid"):
            verify_untrusted(public, domain, message, signature, "claim")


def test_no_purpose_is_the_beginning_of_another() -> None:
    for domain in DOMAINS:
        assert domain.endswith(b"\0")
        assert domain.count(b"\0") == 1
    assert len(set(DOMAINS)) == len(DOMAINS)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), b"\xff" * 32])
def test_a_malformed_public_key_is_an_authentication_error(public: bytes) -> None:
    with pytest.raises(AuthenticationError):
        verify_untrusted(public, signing.CLAIM, b"", bytes(64), "claim")


def test_attached_signatures_come_off_again() -> None:
    signed = key().attach(signing.CLAIM, b"message")
    assert detach_untrusted(key().public, signing.CLAIM, signed, "claim") == b"message"
    for size in range(len(signed)):
        with pytest.raises(AuthenticationError):
            detach_untrusted(key().public, signing.CLAIM, signed[:size], "claim")
    for position in range(len(signed)):
        damaged = bytearray(signed)
        damaged[position] ^= 1
        with pytest.raises(AuthenticationError):
            detach_untrusted(key().public, signing.CLAIM, bytes(damaged), "claim")


def test_a_signing_key_shows_its_public_half_and_cannot_be_copied() -> None:
    secret = seeded_entropy(1)(32)
    assert secret.hex() not in repr(key())
    assert key().public.hex() in repr(key())
    assert key().private_bytes() == secret
    for duplicate in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            duplicate(key())
