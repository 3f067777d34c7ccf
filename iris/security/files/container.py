"""Key container: the JSON that secrets are kept in, and its wrapping with a passphrase (scrypt, AES-256-GCM).

Every file says what it is, in which version, and of which kind::

    {"iris": "credential", "version": 1, "kind": "portable", ...}
    {"iris": "credential", "version": 1, "kind": "wrapped", "log_n": 17, "salt": B64, "ciphertext": B64}

B64 is base64.  A wrapped file holds another one of the same sort: AES-256-GCM, nonce zero, under the key
scrypt(passphrase, salt, n = 2^log_n, r = 8, p = 1).  Each salt is fresh, so each key seals one text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from iris.kernel.errors import ConfigError
from iris.kernel.names import Entropy
from iris.kernel.shapes import are_texts, is_list, is_map
from iris.security.secret import Secret

VERSION: Final = 1
WRAPPED: Final = "wrapped"

_LOG_N: Final = 17
"""128 MiB and a third of a second for each guess."""

_LOG_N_RANGE: Final = range(14, 21)
"""Costs that a file may ask for: below them guessing is cheap, above them a file could ask for gigabytes."""

_SALT_SIZE: Final = 16
_UNREADABLE: Final = object()


_SORT: Final = re.compile(rb'\s*\{\s*"iris"\s*:\s*"([a-z_]{1,32})"')


def sort_of(data: bytes) -> str:
    """Return what a file says that it is, wrapped or not; empty if it is none of these files."""
    found = _SORT.match(data)
    return "" if found is None else found[1].decode()


@final
class Container:
    """The fields of one file; whatever is missing or malformed raises ConfigError with the field's name."""

    __slots__ = ("_fields", "_sort", "kind")

    def __init__(self, data: bytes, sort: str) -> None:
        try:
            fields = json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse)
        except (ValueError, RecursionError):
            fields = _UNREADABLE
        if fields is _UNREADABLE:  # raised here: in the parser's error is the whole file, and it would be the context
            raise ConfigError(f"not a {sort} file: it is not the JSON that Iris writes")
        self._fields = fields if is_map(fields) else {}
        if self._fields.get("iris") != sort:
            raise ConfigError(f"not a {sort} file")
        if self._fields.get("version") != VERSION:
            raise ConfigError(f"a {sort} file of another version than {VERSION}: a newer Iris may have written it")
        self._sort = sort
        self.kind = self.text("kind")

    def __repr__(self) -> str:
        return f"<Container of a {self._sort}, {self.kind}>"

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._fields.get(name)
        if not isinstance(value, str):
            self._refuse(name)
        return value

    def number(self, name: str) -> int:
        """Return an integer of at most 63 bits, not negative."""
        return self._number(name, self._fields.get(name))

    def binary(self, name: str, size: int | None = None) -> bytes:
        """Return bytes, exactly ``size`` of them if it is given."""
        return self._decode(name, self._fields.get(name), size)

    def secret(self, name: str, size: int) -> Secret:
        """Return ``size`` bytes that must not be seen."""
        return Secret(self.binary(name, size))

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self._list(name)
        if not are_texts(values):
            self._refuse(name)
        return values

    def binaries(self, name: str, size: int | None = None) -> tuple[bytes, ...]:
        """Return a list of byte strings, exactly ``size`` bytes each if it is given."""
        return tuple(self._decode(name, value, size) for value in self._list(name))

    def numbers(self, name: str) -> dict[str, int]:
        """Return an object whose values are integers."""
        value = self._fields.get(name)
        if not is_map(value):
            self._refuse(name)
        return {key: self._number(name, item) for key, item in value.items()}

    def _number(self, name: str, value: object) -> int:
        if type(value) is not int or not 0 <= value < 2**63:
            self._refuse(name)
        return value

    def _list(self, name: str) -> tuple[object, ...]:
        value = self._fields.get(name)
        if not is_list(value):
            self._refuse(name)
        return tuple(value)

    def _decode(self, name: str, value: object, size: int | None) -> bytes:
        if not isinstance(value, str):
            self._refuse(name)
        try:
            decoded = base64.b64decode(value, validate=True)
        except ValueError:
            self._refuse(name)
        if size is not None and len(decoded) != size:
            self._refuse(name)
        return decoded

    def _refuse(self, name: str) -> NoReturn:
        # the value stays out of the message: it may be a secret
        raise ConfigError(f"the {self._sort} file is damaged: {name!r} is missing or malformed") from None


def encode_binary(data: bytes) -> str:
    """Return ``data`` as ``Container.binary`` reads it."""
    return base64.b64encode(data).decode()


def encode_container(sort: str, kind: str, fields: Mapping[str, object]) -> bytes:
    """Return the text of a file."""
    head = {"iris": sort, "version": VERSION, "kind": kind}
    return (json.dumps(head | dict(fields), indent=2) + "\n").encode()


def wrap(content: bytes, sort: str, passphrase: str, entropy: Entropy) -> bytes:
    """Return the text of a file that holds ``content``, a file of the same sort, under a passphrase.

    Raises:
        ConfigError: the passphrase is empty, or no text.
    """
    if not passphrase:
        raise ConfigError("the passphrase is empty")
    salt = entropy(_SALT_SIZE)
    key = _derive(passphrase, salt, _LOG_N)
    ciphertext = AESGCM(key).encrypt(bytes(12), content, _associated(sort))
    return encode_container(
        sort, WRAPPED, {"log_n": _LOG_N, "salt": encode_binary(salt), "ciphertext": encode_binary(ciphertext)}
    )


def open_container(data: bytes, sort: str, passphrase: str | None) -> Container:
    """Read a file, unwrapping it if it is wrapped.  A passphrase that is not needed is ignored.

    Raises:
        ConfigError: malformed, or the passphrase is missing or wrong.
    """
    container = Container(data, sort)
    if container.kind != WRAPPED:
        return container
    if passphrase is None:
        raise ConfigError(f"this {sort} is protected: give its passphrase")
    log_n = container.number("log_n")
    if log_n not in _LOG_N_RANGE:
        raise ConfigError(f"the {sort} file is damaged: 'log_n' is not between 14 and 20")
    key = _derive(passphrase, container.binary("salt", _SALT_SIZE), log_n)
    try:
        content = AESGCM(key).decrypt(bytes(12), container.binary("ciphertext"), _associated(sort))
    except InvalidTag:
        raise ConfigError(f"the passphrase of this {sort} is wrong, or the file is damaged") from None
    return Container(content, sort)


def _derive(passphrase: str, salt: bytes, log_n: int) -> bytes:
    try:
        # Python hands on bytes of the environment that are no UTF-8 as surrogates; what counts is those bytes.
        typed = passphrase.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ConfigError("the passphrase has characters that no text can have") from None
    return Scrypt(salt=salt, length=32, n=2**log_n, r=8, p=1).derive(typed)


def _associated(sort: str) -> bytes:
    return f"iris {sort} {VERSION}".encode() + b"\0"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
