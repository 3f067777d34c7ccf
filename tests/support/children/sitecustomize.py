"""Tells a test run of the secrets that the processes make which it starts.

The directory of this file is in ``PYTHONPATH`` while tests run, and Python imports a module of this name whenever it
starts.  Where the variable ``IRIS_TEST_SECRETS`` names a file, every secret that is made in that process is written
there, a line each, before anybody can show it: ``tests.support.canary_watch`` reads them.  Nothing is imported for it
but what the process imports by itself.

It also has these processes look for garbage as seldom as the tests do, and not once more when they end.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable
from typing import Any

VARIABLE = "IRIS_TEST_SECRETS"

GARBAGE = 50_000
"""Objects after which garbage is looked for.  Python's 700 cost a tenth of the processor time of all tests."""

Tell = Callable[[bytes], None]
Undo = Callable[[], None]


def _watch_constructor(kind: Any, tell: Tell) -> Undo:
    constructor = kind.__init__

    def watching(made: object, private: bytes) -> None:
        tell(private)
        constructor(made, private)

    kind.__init__ = watching
    return lambda: setattr(kind, "__init__", constructor)


def _watch_secrets(module: Any, tell: Tell, tell_passphrase: Tell) -> Undo:
    kind = module.Secret
    before = kind.__dict__.get("__new__")

    def watching(cls: type[bytes], value: bytes = b"") -> bytes:
        tell(value)
        return bytes.__new__(cls, value)

    kind.__new__ = watching
    return lambda: delattr(kind, "__new__") if before is None else setattr(kind, "__new__", before)


def _watch_passphrases(module: Any, tell: Tell, tell_passphrase: Tell) -> Undo:
    derive = module._derive

    def watching(passphrase: str, salt: bytes, log_n: int) -> bytes:
        tell_passphrase(passphrase.encode(errors="surrogatepass"))
        key: bytes = derive(passphrase, salt, log_n)
        tell(key)
        return key

    module._derive = watching
    return lambda: setattr(module, "_derive", derive)


WATCHED: dict[str, Callable[[Any, Tell, Tell], Undo]] = {
    "iris.security.secret": _watch_secrets,
    "iris.security.noise.handshake_state": lambda module, tell, _: _watch_constructor(module.KeyPair, tell),
    "iris.security.identity.signing": lambda module, tell, _: _watch_constructor(module.SigningKey, tell),
    "iris.security.files.container": _watch_passphrases,
}
"""Places that make secrets: called with a module and recorders of secrets and passphrases, each returns its undo."""


class _Finder:
    """Finds modules where the others find them, and has those watched that make secrets."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._descriptor: int | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in WATCHED:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._watch(spec.loader, WATCHED[name])
                return spec
        return None

    def _watch(self, loader: Any, watch: Callable[[Any, Tell, Tell], Undo]) -> None:
        execute = loader.exec_module

        def watched(module: Any) -> None:
            execute(module)
            watch(module, self._tell, lambda passphrase: self._tell(passphrase, b"p"))

        loader.exec_module = watched

    def _tell(self, secret: bytes, kind: bytes = b"s") -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(self._descriptor, kind + bytes(memoryview(secret)).hex().encode() + b"\n")


def _leave_garbage() -> None:
    """Look for garbage no more, but where that shows what was never closed or awaited: with warnings, and with asyncio.

    What it would show else are errors of ``__del__`` in cycles.
    """
    if not sys.warnoptions and "asyncio" not in sys.modules:
        gc.freeze()


if os.environ.get(VARIABLE):
    sys.meta_path.insert(0, _Finder(os.environ[VARIABLE]))
    gc.set_threshold(GARBAGE)
    atexit.register(_leave_garbage)
