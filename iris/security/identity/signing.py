"""Ed25519 signatures with domain separation: a signature made for one purpose verifies for no other.

What is signed is ``domain || message``; a domain is a fixed text that ends in a zero byte, so none is the start of
another.  Signed values are kept and verified as the raw bytes that were signed, never re-encoded.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Final, final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from iris.kernel.errors import AuthenticationError
from iris.security.secret import Secret

SIGNATURE_SIZE: Final = 64
PUBLIC_KEY_SIZE: Final = 32

CERTIFICATE: Final = b"iris cluster certificate 1\0"
DELEGATION: Final = b"iris node delegation 1\0"
REVOCATION: Final = b"iris revocation list 1\0"
CLAIM: Final = b"iris node claim 1\0"
BUNDLE: Final = b"iris realm bundle 1\0"


@functools.lru_cache(maxsize=64)
def realm_fingerprint(realm: bytes) -> str:
    """Return the name of the realm with the root public key ``realm``: 32 hexadecimal digits."""
    return hashlib.sha256(b"iris realm 1\0" + realm).hexdigest()[:32]


@final
class SigningKey:
    """An Ed25519 private key: a realm's root, a cluster's key, or a node's.  Its repr shows the public half only."""

    __slots__ = ("_private", "public")

    def __init__(self, private: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.hex()})"

    def __reduce__(self) -> str:
        raise TypeError("a signing key is not copied or pickled")

    def private_bytes(self) -> Secret:
        """Return the secret half, to store it."""
        return Secret(self._private.private_bytes_raw())

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """Return the 64-byte signature of ``message`` for the purpose ``domain``."""
        return self._private.sign(domain + message)

    def attach(self, domain: bytes, message: bytes) -> bytes:
        """Return ``message`` with its signature behind it."""
        return message + self.sign(domain, message)


@functools.lru_cache(maxsize=1024)
def _public_key(public_key: bytes) -> Ed25519PublicKey:
    """Return a public key as the library wants it; the same few keys sign nearly everything."""
    return Ed25519PublicKey.from_public_bytes(public_key)


def verify_untrusted(public_key: bytes, domain: bytes, message: bytes, signature: bytes, what: str) -> None:
    """Check a signature; ``what`` names the signed thing in the error.

    Raises:
        AuthenticationError: the signature was not made by this key, for this purpose, over this message.
    """
    try:
        _public_key(public_key).verify(signature, domain + message)
    except (InvalidSignature, ValueError):
        raise AuthenticationError(f"{what}: the signature is not valid") from None


def detach_untrusted(public_key: bytes, domain: bytes, signed: bytes, what: str) -> bytes:
    """Return the message of ``signed``, which ``attach`` made, after checking its signature.

    Raises:
        AuthenticationError: it is too short, or the signature is not valid.
    """
    if len(signed) <= SIGNATURE_SIZE:
        raise AuthenticationError(f"{what}: cut off")
    message, signature = signed[:-SIGNATURE_SIZE], signed[-SIGNATURE_SIZE:]
    verify_untrusted(public_key, domain, message, signature, what)
    return message
