"""Local realm: the user's own realm on this machine, there without being set up, and closed to every other user.

Use::

    realm = open_local_realm(entropy=os.urandom)  # made on first use
    credential = realm.credential("databases", wall_now=wall_now)  # for any name; remembered
    directory = runtime_directory(realm.fingerprint)  # for ipc sockets and the registry

Below ``$IRIS_HOME/local`` (default ``$XDG_DATA_HOME/iris/local``, ``~/.local/share/iris/local``), all 0600 in
directories of 0700::

    realm.json         root key and gate secret
    clusters/NAME.json a credential for each name that was ever asked for
    lock               held while one of the others is being made

A reader of these files is the user.  Processes that start at the same moment get the same realm: files are
made under the lock, and appear whole.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from iris.kernel.errors import ConfigError
from iris.kernel.names import Entropy, check_name
from iris.security.files.container import encode_binary, encode_container, open_container
from iris.security.files.credential_file import load_credential, save_credential
from iris.security.files.private_files import locked, make_private_directory, read_private, write_private
from iris.security.identity import (
    CLOCK_TOLERANCE,
    GATE_SECRET_SIZE,
    Credential,
    Rights,
    SigningKey,
    issue_certificate,
    realm_fingerprint,
)

_log: Final = logging.getLogger("iris")

_DAY: Final = 24 * 3600
CERTIFICATE_LIFETIME: Final = 366 * _DAY
"""Seconds; nobody is asked to do anything when one ends: the next start after the last month begins makes another."""

_RENEWAL: Final = 30 * _DAY
_SORT: Final = "realm"
_WHAT: Final = "local realm"
_MENDED: Final = "set IRIS_HOME to a directory that this user can write"

_EVERYTHING: Final = Rights(serves=(">",), publishes=None, subscribes=None, gateway=True)
"""Rights of one user's programs, which trust each other: one that misused them could read the root key as well."""

_RUNTIME: Final = "runtime directory"
_INSTEAD: Final = "set XDG_RUNTIME_DIR to a directory of this user with mode 0700"
_ABSENT: Final = "is not there"
_WRITABLE: Final = 0o022

_TEMPORARY: Final = Path("/tmp")  # noqa: S108 -- a directory there is used only if it is private to this user

_TOO_LONG: Final = "is too long for the paths of sockets"

_MAX_DIRECTORY: Final = 64
"""Characters.  The path of a socket may have 107, and a node's file in this directory takes up to 43 of them."""


def iris_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory in which Iris keeps what belongs to this user.

    Raises:
        ConfigError: nothing says where that is.
    """
    if home := environment.get("IRIS_HOME"):
        return Path(home)
    if data := environment.get("XDG_DATA_HOME"):
        return Path(data) / "iris"
    try:
        return Path(environment.get("HOME") or Path("~").expanduser()) / ".local" / "share" / "iris"
    except RuntimeError:  # a user without an entry, as in many containers
        raise ConfigError(f"this user has no home directory: {_MENDED}") from None


def private_home(what: str, *below: str) -> Path:
    """Make a directory in ``iris_home()``, and that one, if they are not there; return it.

    Raises:
        ConfigError: it cannot be made, or is not private to this user; the message says how to mend it.
    """
    directory = iris_home()
    for part in ("", *below):
        directory /= part
        try:
            make_private_directory(directory, what if part else "Iris home")
        except ConfigError as error:
            if os.path.lexists(directory):  # the message says how to put it right
                raise
            raise ConfigError(f"{error}: {_MENDED}") from None
    return directory


def open_local_realm(*, home: Path | None = None, entropy: Entropy = os.urandom) -> LocalRealm:
    """Return the local realm, which is made on first use.

    Args:
        home: None: ``iris_home()``.
        entropy: source of its keys.

    Raises:
        ConfigError: the files cannot be made or read, or are not private to this user; the message says how to mend
            it.
    """
    if home is None:
        directory = private_home(_WHAT, "local")
    else:
        directory = make_private_directory(make_private_directory(home, _WHAT) / "local", _WHAT)
    make_private_directory(directory / "clusters", _WHAT)
    file = directory / "realm.json"
    if not os.path.lexists(file):
        with locked(directory / "lock", _WHAT):
            if not os.path.lexists(file):
                secrets = {"root_key": entropy(32), "gate_secret": entropy(GATE_SECRET_SIZE)}
                encoded = {name: encode_binary(secret) for name, secret in secrets.items()}
                write_private(file, encode_container(_SORT, "local", encoded), _WHAT)
    data = read_private(file, _WHAT)
    try:
        fields = open_container(data, _SORT, None)
        root = SigningKey(fields.secret("root_key", 32))
        gate_secret = fields.secret("gate_secret", GATE_SECRET_SIZE)
    except ConfigError as error:
        raise ConfigError(f"{_WHAT} {file}: {error}") from None
    return LocalRealm(directory, root, gate_secret, entropy)


@final
class LocalRealm:
    """The local realm of this user.  Made by ``open_local_realm``; the repr shows no secret."""

    __slots__ = ("_directory", "_entropy", "_gate_secret", "_root")

    def __init__(self, directory: Path, root: SigningKey, gate_secret: bytes, entropy: Entropy) -> None:
        self._directory = directory
        self._root = root
        self._gate_secret = gate_secret
        self._entropy = entropy

    def __repr__(self) -> str:
        return f"<LocalRealm {self.fingerprint} in {self._directory}>"

    @property
    def fingerprint(self) -> str:
        """The realm's name: 32 hexadecimal digits."""
        return realm_fingerprint(self._root.public)

    def credential(self, name: str, *, wall_now: float) -> Credential:
        """Return the credential for a cluster name: the one made before, or a fresh one, with every right.

        All processes of this user get the same one.  It is renewed, with the same key, in the last month of its
        validity.

        Raises:
            ConfigError: ``name`` is not a cluster name, or a file is not private to this user.
        """
        check_name(name, "cluster")
        file = self._directory / "clusters" / f"{name}.json"
        known = self._known(file)
        if known is not None and self._is_current(known, wall_now):
            return known
        with locked(self._directory / "lock", _WHAT):
            known = self._known(file)  # another process may have been faster
            if known is not None and self._is_current(known, wall_now):
                return known
            fresh = self._mint(name, known, wall_now)
            save_credential(file, fresh, replace=True)
            return fresh

    def _known(self, file: Path) -> Credential | None:
        return load_credential(file) if os.path.lexists(file) else None

    def _is_current(self, credential: Credential, wall_now: float) -> bool:
        return (
            credential.realm == self._root.public
            and credential.gate_secrets == (self._gate_secret,)
            and credential.certificate.not_before <= wall_now < credential.certificate.not_after - _RENEWAL
        )

    def _mint(self, name: str, known: Credential | None, wall_now: float) -> Credential:
        key = known.keys if known is not None and isinstance(known.keys, SigningKey) else SigningKey(self._entropy(32))
        certificate = issue_certificate(
            self._root,
            name=name,
            public_key=key.public,
            generation=1,
            not_before=wall_now - CLOCK_TOLERANCE,
            not_after=wall_now + CERTIFICATE_LIFETIME,
            rights=_EVERYTHING,
        )
        return Credential(realm=self._root.public, gate_secrets=(self._gate_secret,), certificate=certificate, keys=key)


def runtime_directory(fingerprint: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for sockets and the registry of a realm, made private to this user.

    It is ``$XDG_RUNTIME_DIR/iris/<fingerprint>``, or ``/tmp/iris-<uid>/<fingerprint>`` where that variable is
    not set, leads to a directory that is not there, is too long for the path of a socket, or leads to one that is not
    this user's, or can be written to by others; of the last three there is a line in the log, of the first at INFO.

    Raises:
        ConfigError: somebody else has made a directory of that name, or it is open to others.
    """
    directory, unfit = runtime_place(fingerprint, environment)
    if unfit:
        # What is too long is nobody's fault, and nodes of the same surroundings meet all the same.
        level = logging.INFO if _TOO_LONG in unfit else logging.WARNING
        instead = f"sockets are in {directory.parent}, where processes with another one do not look for them"
        _note(level, f"{unfit}; {instead}")
    if directory.is_relative_to(_shared()) and (reason := _unsafe(_TEMPORARY)):
        raise ConfigError(f"{_RUNTIME} {directory.parent}: {reason}")
    make_private_directory(directory.parent, _RUNTIME, _INSTEAD)
    return make_private_directory(directory, _RUNTIME, _INSTEAD)


def runtime_place(fingerprint: str, environment: Mapping[str, str] = os.environ) -> tuple[Path, str]:
    """Return where the runtime directory of a realm is, made or not, and why XDG_RUNTIME_DIR leads elsewhere.

    The reason is empty where the variable is used, is not set, or leads to a directory that is not there.
    """
    user = os.geteuid()
    base = Path(environment.get("XDG_RUNTIME_DIR") or "/nonexistent")
    directory = base / "iris" / fingerprint
    unfit = _unfit(base, user)
    if not unfit and len(str(directory)) <= _MAX_DIRECTORY:
        return directory, ""
    if not unfit:
        room = _MAX_DIRECTORY - (len(str(directory)) - len(str(base)))
        unfit = f"{_TOO_LONG}: it has {len(str(base))} characters, and may have {room}"
    reason = f"XDG_RUNTIME_DIR is not used: {base} {unfit}" if unfit != _ABSENT else ""
    return _shared() / fingerprint, reason


def _shared() -> Path:
    """Return this user's directory in the one in which everybody has files."""
    return _TEMPORARY / f"iris-{os.geteuid()}"


def _unfit(directory: Path, user: int) -> str:
    """Return why a directory is not one in which this user's sockets may be; nothing if it is one."""
    try:
        status = directory.stat()
    except OSError:
        return _ABSENT
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if status.st_uid != user:
        return f"belongs to user {status.st_uid}, not to user {user}"
    if status.st_mode & _WRITABLE:
        return f"can be written to by others (mode {stat.S_IMODE(status.st_mode):04o}; it should be 0700)"
    return ""


def _unsafe(directory: Path) -> str:
    """Return what is wrong with a directory in which everybody has files; nothing if they are safe from each other."""
    mode = directory.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return (
            f"anybody can replace what is in {directory} (mode {stat.S_IMODE(mode):04o}, without the sticky bit): "
            f"{_INSTEAD}, or run as root: chmod +t {directory}"
        )
    return ""


@functools.lru_cache(maxsize=16)  # said once by each process, not by each node
def _note(level: int, text: str) -> None:
    _log.log(level, "%s", text, extra={"cause": text})
