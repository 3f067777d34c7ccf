"""Watches a whole test run for secrets in logs, reports and exceptions.

Every secret that is made while the tests run, in the process that runs them, is a canary: private keys, gate secrets,
seeds of ML-KEM, results of Diffie-Hellman, chaining and session keys, passphrases and the keys made of them.
Everything that is logged (at DEBUG), printed or reported is searched for them: raw, in hexadecimal, in base64, and as
Python writes bytes down.  If one is found the run fails.
"""

from __future__ import annotations

import ast
import base64
import binascii
import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, final

import pytest

from iris.security import container
from iris.security.noise import KeyPair
from iris.security.secret import Secret
from iris.security.signing import SigningKey

_BLOCK: Final = 8
"""Bytes of a secret that are looked for together.  Each secret is cut into as many as it has, so that any part of it
gives it away that holds a whole block: any 15 bytes of it do.  All are kept as one kind of value, and what is searched
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


@final
class CanaryWatch(logging.Handler):
    """The plugin.  ``config.pluginmanager.register(CanaryWatch())``, once."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.canaries = Canaries()
        self.seen: list[str] = []
        self._texts: list[tuple[str, str]] = []
        self._undo: list[Callable[[], None]] = []

    def pytest_sessionstart(self) -> None:
        """Begin to take note of secrets and of what is logged."""
        for kind in (KeyPair, SigningKey):
            self._watch_constructor(kind)
        self._watch_secrets()
        self._watch_passphrases()
        logger = logging.getLogger()
        level = logger.level
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)
        self._undo += [lambda: logger.removeHandler(self), lambda: logger.setLevel(level)]

    def _watch_constructor(self, kind: Any) -> None:
        constructor = kind.__init__

        def watching(made: object, private: bytes) -> None:
            self.canaries.add(private)
            constructor(made, private)

        kind.__init__ = watching
        self._undo.append(lambda: setattr(kind, "__init__", constructor))

    def _watch_secrets(self) -> None:
        kind: Any = Secret
        before = kind.__dict__.get("__new__")

        def watching(cls: type[bytes], value: bytes = b"") -> bytes:
            self.canaries.add(value)
            return bytes.__new__(cls, value)

        kind.__new__ = watching
        self._undo.append(lambda: delattr(kind, "__new__") if before is None else setattr(kind, "__new__", before))

    def _watch_passphrases(self) -> None:
        module: Any = container
        derive = container._derive

        def watching(passphrase: str, salt: bytes, log_n: int) -> bytes:
            self.canaries.add_passphrase(passphrase)
            key = derive(passphrase, salt, log_n)
            self.canaries.add(key)
            return key

        module._derive = watching
        self._undo.append(lambda: setattr(module, "_derive", derive))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what was logged, with its exception."""
        self._texts.append((record.name, self.format(record)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test has printed, and how it failed."""
        texts = [report.longreprtext, *(text for _, text in report.sections)]
        self._texts += [(report.nodeid, text) for text in texts if text]
        if report.when == "teardown":
            self._search()

    def _search(self) -> None:
        for where, text in self._texts:
            if self.canaries.find(text) is not None:
                self.seen.append(where)
        self._texts.clear()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Search what is left, and fail the run if a secret was seen."""
        self._search()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        if self.seen:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was found."""
        terminalreporter.write_line(f"secrets made: {len(self.canaries)}; seen in logs and reports: {len(self.seen)}")
        for where in sorted(set(self.seen)):
            terminalreporter.write_line(f"a secret was seen in: {where}", red=True)
