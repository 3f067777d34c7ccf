"""Secrets that are looked for in texts: raw, in hexadecimal, in base64, and as Python writes bytes down.

``tests.support.canary_watch`` does that for a whole test run.
"""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import re
from collections.abc import Iterator
from typing import Final, final

_BLOCK: Final = 8
"""Size of a block of a secret, in bytes.  Each secret is cut into as many blocks as it has, so that any part of it
gives it away that has a whole block: any 15 bytes of it do.  All are kept as one kind of value, and what is searched
is decoded instead: 300 bytes for each secret, of which a run makes some 10,000s."""

_SHORTEST: Final = 2 * _BLOCK - 1
_HEX_RUN: Final = re.compile(rf"[0-9a-fA-F]{{{2 * _SHORTEST},}}")
_BASE64_RUN: Final = re.compile(rf"[A-Za-z0-9+/_-]{{{4 * _SHORTEST // 3},}}")
_LITERAL: Final = re.compile(r"""b'(?:[^'\\\n]|\\.)*'|b"(?:[^"\\\n]|\\.)*\"""")
_BINARY: Final = re.compile(r"[^\t\n -~]")
_UNSAFE: Final = str.maketrans("-_", "+/")

_TRIVIAL: Final = 8
"""Keys of fewer different bytes are made up by tests, and might well be seen elsewhere."""

_TRIVIAL_BLOCK: Final = 5

_PASSPHRASE: Final = 12
"""Characters of a passphrase that is looked for.  Shorter ones are words."""


@final
class Canaries:
    """Secrets to look for.  What is looked through costs the same however many there are."""

    def __init__(self) -> None:
        self._blocks: set[bytes] = set()
        self._passphrases: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, secret: bytes) -> None:
        """Look for ``secret``, of at least 32 bytes, from now on."""
        if len(secret) < 32 or len(set(secret)) < _TRIVIAL:
            return
        before = len(self._blocks)
        plain = bytes(memoryview(secret))
        if plain[:_BLOCK] in self._blocks and plain[-_BLOCK:] in self._blocks:
            return  # each is made twice and more: as what was derived, as a key, by both ends
        for start in range(0, len(plain) - _BLOCK + 1, _BLOCK):
            block = plain[start : start + _BLOCK]
            if len(set(block)) >= _TRIVIAL_BLOCK:
                self._blocks.add(block)
        self._count += len(self._blocks) > before

    def add_passphrase(self, passphrase: str) -> None:
        """Look for ``passphrase`` from now on, if it is no mere word."""
        if len(passphrase) >= _PASSPHRASE:
            self._count += passphrase not in self._passphrases
            self._passphrases.add(passphrase)

    def find(self, text: str) -> str | None:
        """Return what of a secret ``text`` gives away, or None."""
        for passphrase in self._passphrases:
            if passphrase in text:
                return passphrase
        for data in _decoded(text):
            for position in range(len(data) - _BLOCK + 1):
                if data[position : position + _BLOCK] in self._blocks:
                    return data[position : position + _BLOCK].hex()
        return None


def _decoded(text: str) -> Iterator[bytes]:
    """Yield everything that a text could stand for."""
    for run in _HEX_RUN.findall(text):
        for start in (0, 1):
            yield bytes.fromhex(run[start : len(run) - (len(run) - start) % 2])
    for run in _BASE64_RUN.findall(text):
        if run.islower() or run.isupper() or run.isdigit():
            continue  # of 15 bytes one in 100,000 looks like that; so do names and paths, which there are many of
        unsafe = run.translate(_UNSAFE)
        for start in range(4):
            with contextlib.suppress(binascii.Error):
                yield base64.b64decode(unsafe[start : len(unsafe) - (len(unsafe) - start) % 4])
    for literal in _LITERAL.findall(text):
        with contextlib.suppress(ValueError, SyntaxError):
            yield ast.literal_eval(literal)
    if _BINARY.search(text):
        yield text.encode("latin-1", "replace")
