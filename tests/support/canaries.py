"""Watches a whole test run for secrets in logs, reports and exceptions.

Every secret that is made while the tests run is a canary: private keys, gate secrets, session keys.  Everything that
is logged (at DEBUG), printed or reported is searched for them: raw, in hexadecimal, in base64, and as Python writes
bytes down.  If one is found the run fails.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import logging
import re
from collections.abc import Callable
from typing import Any, Final, final

import pytest

from iris.security.noise import KeyPair
from iris.security.secret import Secret
from iris.security.signing import SigningKey

# How much of a secret gives it away: half of its 32 bytes, as many characters as these make.
_RAW: Final = 16
_HEX: Final = 2 * _RAW
_BASE64: Final = 4 * (_RAW // 3)

_HEX_RUN: Final = re.compile(rf"[0-9a-fA-F]{{{_HEX},}}")
_BASE64_RUN: Final = re.compile(rf"[A-Za-z0-9+/_-]{{{_BASE64},}}")
_LITERAL: Final = re.compile(r"""b'(?:[^'\\\n]|\\.)*'|b"(?:[^"\\\n]|\\.)*\"""")

_TRIVIAL: Final = 8
"""Keys of fewer different bytes are made up by tests, and might well be seen elsewhere."""


@final
class Canaries:
    """Secrets to look for.  What is looked through costs the same however many there are."""

    def __init__(self) -> None:
        self._raw: set[bytes] = set()
        self._hex: set[str] = set()
        self._base64: set[str] = set()

    def __len__(self) -> int:
        return len(self._raw)

    def add(self, secret: bytes) -> None:
        """Look for ``secret`` from now on."""
        if len(secret) < 32 or len(set(secret)) < _TRIVIAL:
            return
        secret = bytes(memoryview(secret))
        self._raw.add(secret[:_RAW])
        self._hex.add(secret.hex()[:_HEX])
        for encoded in (base64.b64encode(secret), base64.urlsafe_b64encode(secret)):
            self._base64.add(encoded.decode()[:_BASE64])

    def find(self, text: str) -> str | None:
        """Return a secret that ``text`` gives away, or None."""
        for run in _HEX_RUN.findall(text):
            if found := _first(run.lower(), _HEX, self._hex):
                return found
        for run in _BASE64_RUN.findall(text):
            if found := _first(run, _BASE64, self._base64):
                return found
        for literal in _LITERAL.findall(text):
            with contextlib.suppress(ValueError, SyntaxError):
                if found := self._find_raw(ast.literal_eval(literal)):
                    return found
        return self._find_raw(text.encode("latin-1", "replace"))

    def _find_raw(self, data: bytes) -> str | None:
        for position in range(len(data) - _RAW + 1):
            if data[position : position + _RAW] in self._raw:
                return data[position : position + _RAW].hex()
        return None


def _first(run: str, size: int, known: set[str]) -> str | None:
    for position in range(len(run) - size + 1):
        if run[position : position + size] in known:
            return run[position : position + size]
    return None


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
