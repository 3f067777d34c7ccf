"""Identities and names: what may be called what."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NewType

from iris.kernel.errors import ConfigError

NodeId = NewType("NodeId", str)
"""One boot of one process: 32 lowercase hexadecimal characters that follow from its keys, never reused."""

Entropy = Callable[[int], bytes]
"""A source of unpredictable bytes: ``os.urandom`` in production, a seeded one in simulations."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_MAX_KEY = 256
_NODE_ID = re.compile(r"[0-9a-f]{32}\Z")


def is_node_id(value: object) -> bool:
    """Tell whether ``value``, which may come from a peer, has the form of a node id."""
    return isinstance(value, str) and _NODE_ID.match(value) is not None


def check_key(value: str | None) -> str | None:
    """Return ``value`` if it can be a key, which keeps requests or events together.

    Raises:
        ConfigError: it is not a str of at most 256 bytes of UTF-8.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str) and len(value.encode()) <= _MAX_KEY:
            return value
    except UnicodeEncodeError:
        pass
    raise ConfigError(f"{value!r} is not a key: use a text of at most {_MAX_KEY} bytes")


def is_name(value: object) -> bool:
    """Tell whether ``value``, which may come from a peer, is a valid cluster, site or operation name."""
    return isinstance(value, str) and _NAME.match(value) is not None


def check_address(value: str) -> str:
    """Return ``value`` if it addresses a cluster: its name, or its name, ``@`` and the name of a site.

    Raises:
        ConfigError: it does not.
    """
    name, at, site = value.partition("@") if isinstance(value, str) else (value, "", "")
    check_name(name, "cluster")
    if at:
        check_name(site, "site")
    return value


def check_name(value: str, what: str) -> str:
    """Return ``value`` if it is a valid name for a ``what`` (cluster, site, operation).

    Raises:
        ConfigError: it is not 1 to 128 of letters, digits, ``-``, ``_`` and ``.``.
    """
    if not is_name(value):
        article = "an" if what[0] in "aeiou" else "a"
        raise ConfigError(f"{value!r} is not {article} {what} name: use 1 to 128 of letters, digits, '-', '_' and '.'")
    return value
