"""Tokens: what programs without a credential show at a door, and what each may do there.

A token is 256 random bits, given out once; the file holds its SHA-256, which is as good as secret for so many bits, and
the rights of who shows it.  A client without a right to something may do nothing of the kind.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from msgspec import Struct

from iris.kernel.errors import ConfigError
from iris.kernel.names import check_name, is_of_iris
from iris.kernel.numerals import as_float, shown
from iris.kernel.rates import check_rate
from iris.security.files import MAX_FILE, locked, read_private, write_private
from iris.security.identity import check_patterns, covers

_WHAT: Final = "tokens file"
_FORMAT: Final = "iris tokens 1"
_PREFIX: Final = "iris_"
"""Prefix of a token, by which people and scanners of secrets see what it is."""

LONGEST_TOKEN: Final = 256
"""Characters of a token at most: what is longer is none, and is not looked at."""


@final
class Token(Struct, frozen=True, kw_only=True):
    """Rights of the bearer of one token: none at first.

    Args:
        digest: SHA-256 of the token, in hexadecimal.
        call: patterns of clusters that it may ask, tell and survey, and open tunnels to.
        publish: patterns of topics that it may publish.
        subscribe: patterns of topics that it may subscribe to.  Patterns are of the door's realm; one with ``REALM/``
            before it is of that other realm, and there is none for all realms.
        serve: patterns of clusters that it may serve, of the door's realm.  There is none for those of Iris itself.
        take: patterns of queues whose jobs it may take, and that it may look at.
        read: patterns of topics that it may read in a bridge's log.  Before one stands ``GROUP/`` if that is in a group
            that goes on where it was.
        lease: ``CLUSTER/PATTERN``: leases of a cluster that it may hold.
        expires: seconds of Unix time at which it ends; None: never.
        rate: messages that it may send each second, at each door; None: any number.
        rate_bytes: bytes of their payloads and headers each second, likewise.
        subscriptions: subscriptions that it may have at a time, at each door; None: as many as ``ClientLimits`` say.
    """

    digest: str
    call: tuple[str, ...] = ()
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    lease: tuple[str, ...] = ()
    expires: float | None = None
    rate: float | None = None
    rate_bytes: float | None = None
    subscriptions: int | None = None

    def may(self, right: str, wanted: str) -> bool:
        """Return whether its bearer has a right, one of ``RIGHTS``, to all that ``wanted`` matches."""
        patterns: tuple[str, ...] = getattr(self, right)
        if right == "serve" and is_of_iris(wanted):  # whatever the patterns match: callers trust who serves these
            return False
        return any(permits(pattern, wanted) for pattern in patterns)


def permits(pattern: str, wanted: str) -> bool:
    """Return whether a right to a pattern is one to all that ``wanted`` matches: in the realm it names and no other."""
    realm, name = _parts(pattern)
    wanted_realm, wanted_name = _parts(wanted)
    return realm == wanted_realm and covers(name, wanted_name)


def _parts(pattern: str) -> tuple[str, str]:
    """Return ``REALM/`` that a name or pattern begins with, empty if there is none, and the rest.

    Of the right to read it is ``GROUP/``, of that to leases ``CLUSTER/``.
    """
    realm, slash, name = pattern.partition("/")
    return (realm + slash, name) if slash else ("", pattern)


def _check(patterns: tuple[str, ...], client: str, right: str) -> None:
    """Raise ConfigError if a pattern of a right is malformed, or they are too many."""
    for realm, _ in map(_parts, patterns):
        if realm and right in ("serve", "take"):
            what = "serves a cluster" if right == "serve" else "takes from a queue"
            raise ConfigError(f"client {client} {what} of the door's own realm: leave {realm!r} out of {right}")
        if realm:
            check_name(realm[:-1], {"read": "group", "lease": "cluster"}.get(right, "realm"))
        elif right == "lease":
            raise ConfigError(f"client {client} holds leases of a cluster: write CLUSTER/PATTERN, such as 'orders/>'")
    check_patterns(tuple(_parts(pattern)[1] for pattern in patterns), f"client {client}", right)


_LAST: Final = 1e11
"""Latest end of a token in seconds of Unix time, in the year 5138: a greater number is a mistake."""

_MAX_SUBSCRIPTIONS: Final = 4096

RIGHTS: Final = ("call", "publish", "subscribe", "serve", "take", "read", "lease")
_RATES: Final = ("rate", "rate_bytes")


def digest_of(secret: str) -> str:
    """Return what the file says of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def load_tokens(path: Path) -> dict[str, Token]:
    """Read a file of tokens: the name of each client and what it may do.

    Raises:
        ConfigError: it is not there, others may read it, or it is malformed.
    """
    try:
        found: Any = json.loads(read_private(path, _WHAT, mounted=True))
        if found["format"] != _FORMAT:
            raise ConfigError(f"{_WHAT} {path} has the format {found['format']!r:.60}: this version reads {_FORMAT!r}")
        tokens = {name: _token(name, fields) for name, fields in found["tokens"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{_WHAT} {path} is malformed: make it by 'iris keys token'") from None
    return tokens


def _token(name: str, fields: Mapping[str, Any]) -> Token:
    check_name(name, "client")
    lists = {right: fields.get(right, []) for right in RIGHTS}
    digest, expires = fields["sha256"], fields.get("expires")
    if (
        set(fields) - {"sha256", "expires", "subscriptions", *_RATES, *RIGHTS}
        or not isinstance(digest, str)
        or len(digest) != 64
    ):
        raise ValueError(name)
    if expires is not None:
        expires = _time(expires)
    if not all(isinstance(one, list) for one in lists.values()):
        raise TypeError(name)
    rights = {right: tuple(patterns) for right, patterns in lists.items()}
    for right, patterns in rights.items():
        _check(patterns, name, right)
    given: dict[str, Any] = {**rights, **{rate: check_rate(fields[rate], rate) for rate in _RATES if rate in fields}}
    if "subscriptions" in fields:
        given["subscriptions"] = _subscriptions(fields["subscriptions"])
    return Token(digest=digest, expires=expires, **given)


def _subscriptions(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_SUBSCRIPTIONS:
        raise ConfigError(f"subscriptions is {value!r}: use a whole number from 1 to {_MAX_SUBSCRIPTIONS}")
    return value


def _time(expires: object) -> float:
    seconds = as_float(expires)
    if not 0 <= seconds <= _LAST:
        raise TypeError(shown(expires))
    return seconds


def grant(
    path: Path,
    name: str,
    *,
    call: tuple[str, ...] = (),
    publish: tuple[str, ...] = (),
    subscribe: tuple[str, ...] = (),
    serve: tuple[str, ...] = (),
    take: tuple[str, ...] = (),
    read: tuple[str, ...] = (),
    lease: tuple[str, ...] = (),
    expires: float | None = None,
    rate: float | None = None,
    rate_bytes: float | None = None,
    subscriptions: int | None = None,
) -> str:
    """Write a client with a new token into a file, which is made if it is not there; return the token.

    A client of that name loses the token it had.  The arguments are those of ``Token``.

    Raises:
        ConfigError: a name or pattern is malformed, the end no time, a rate or number none; or the file cannot be used.
    """
    check_name(name, "client")
    try:
        expires = None if expires is None else _time(expires)
    except TypeError as error:
        raise ConfigError(f"expires is {error}: use seconds of Unix time, or None") from None
    given = {"rate": rate, "rate_bytes": rate_bytes}
    rates = {name: check_rate(value, name) for name, value in given.items() if value is not None}
    most = None if subscriptions is None else _subscriptions(subscriptions)
    secret = _PREFIX + secrets.token_urlsafe(32)
    token = Token(
        digest=digest_of(secret), call=call, publish=publish, subscribe=subscribe, serve=serve, take=take, read=read,
        lease=lease, expires=expires, subscriptions=most, **rates,
    )  # fmt: skip
    for right in RIGHTS:
        _check(getattr(token, right), name, right)
    for own in filter(is_of_iris, serve):
        raise ConfigError(f"client {name} serves {own!r}, a name of Iris itself, which no program serves: leave it out")
    with locked(path.with_name(path.name + ".lock"), _WHAT):
        tokens = load_tokens(path) if path.exists() else {}
        _save(path, {**tokens, name: token})
    return secret


def withdraw(path: Path, name: str) -> None:
    """Take a client out of a file: doors that read it close what it has open.

    Raises:
        ConfigError: there is no such client, or the file cannot be read or written.
    """
    with locked(path.with_name(path.name + ".lock"), _WHAT):
        tokens = load_tokens(path)
        if name not in tokens:
            raise ConfigError(f"{_WHAT} {path} has no client {name!r}: it has {', '.join(tokens) or 'none'}")
        del tokens[name]
        _save(path, tokens)


def _save(path: Path, tokens: Mapping[str, Token]) -> None:
    saved = {
        name: {
            "sha256": token.digest,
            # Without empty ones: an earlier version takes no file that names a right which it does not know.
            **{right: list(getattr(token, right)) for right in RIGHTS if getattr(token, right)},
            **{
                name: value
                for name in ("expires", *_RATES, "subscriptions")
                if (value := getattr(token, name)) is not None
            },
        }
        for name, token in tokens.items()
    }
    data = json.dumps({"format": _FORMAT, "tokens": saved}, indent=2).encode() + b"\n"
    if len(data) > MAX_FILE:
        many = f"{len(tokens)} clients take {len(data)} bytes, and {MAX_FILE} are the limit"
        raise ConfigError(f"{_WHAT} {path}: {many}: withdraw some, or give another door a file of its own")
    write_private(path, data, _WHAT)
