"""Names: node ids, and the syntax of clusters, sites, realms, operations, keys and addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, NewType, TypeGuard

from iris.kernel.errors import ConfigError

NodeId = NewType("NodeId", str)
"""One boot of one process: 32 lowercase hexadecimal characters that follow from its keys, never reused."""

Entropy = Callable[[int], bytes]
"""A source of unpredictable bytes: ``os.urandom`` in production, a seeded one in simulations."""

MAX_KEY: Final = 256
"""Limit on the size of a key in bytes."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}\Z")
_NODE_ID = re.compile(r"[0-9a-f]{32}\Z")


def is_node_id(value: object) -> TypeGuard[NodeId]:
    """Return whether ``value``, which may come from a peer, has the form of a node id."""
    return isinstance(value, str) and _NODE_ID.match(value) is not None


def is_alias(value: object) -> TypeGuard[str]:
    """Return whether ``value`` can be the name of a realm here: a name, and no fingerprint of a realm."""
    return is_name(value) and not is_node_id(value)


def check_key(value: str | None) -> str | None:
    """Return ``value`` if it can be a key, which keeps requests or events together.

    Raises:
        ConfigError: it is not a str of at most 256 bytes of UTF-8.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str) and len(value.encode()) <= MAX_KEY:
            return value
    except UnicodeEncodeError:
        pass
    raise ConfigError(f"{value!r} is not a key: use a text of at most {MAX_KEY} bytes")


def is_name(value: object) -> TypeGuard[str]:
    """Return whether ``value``, which may come from a peer, is a valid cluster, site or operation name."""
    return isinstance(value, str) and _NAME.match(value) is not None


OWN: Final = "iris."
"""Prefix of the names of clusters and operations of Iris itself: no program serves them."""

_BRIDGE: Final = "bridge"
"""Name of a bridge that has no other one; those of its members and copies begin with it and a dot."""


def is_of_iris(cluster: str) -> bool:
    """Return whether parts of Iris serve this cluster or speak for it: nodes, gateways, doors, a bridge."""
    return cluster.startswith(OWN) or cluster.partition(".")[0] == _BRIDGE


def account_of(cluster: str) -> str:
    """Return under which name is counted what is kept for a cluster, as it is known here.

    The owner of another realm makes up as many clusters as it likes: what is kept for them is counted together.
    """
    realm, slash, _ = cluster.partition("/")
    return f"{realm}/>" if slash else cluster


class Address(NamedTuple):
    """The parts of an address of a cluster; ``realm`` and ``site`` may be empty."""

    realm: str
    """The name of another realm at this node."""
    cluster: str
    site: str


def split_address(address: str) -> Address:
    """Return the parts of ``REALM/CLUSTER@SITE``, of which the first and the last may be missing."""
    realm, _, rest = address.rpartition("/")
    cluster, _, site = rest.partition("@")
    return Address(realm, cluster, site)


def cluster_of(address: str) -> str:
    """Return the name of the cluster that an address is about, as its members call it."""
    name = address.partition("@")[0] if "@" in address else address
    return name.rpartition("/")[2] if "/" in name else name


def check_address(value: str) -> str:
    """Return ``value`` if it addresses a cluster: its name, perhaps ``@`` and a site, perhaps a realm and ``/`` before.

    Raises:
        ConfigError: it does not.
    """
    rest = value
    if isinstance(value, str) and "/" in value:
        realm, _, rest = value.partition("/")
        check_name(realm, "realm")
    name, at, site = rest.partition("@") if isinstance(rest, str) else (rest, "", "")
    check_name(name, "cluster")
    if at:
        check_name(site, "site")
    return value


def qualified(realm: str, name: str) -> str:
    """Return ``name`` with the realm that it is of before it; as it is if that is the own one, which is empty."""
    return f"{realm}/{name}" if realm else name


def is_site(value: object) -> bool:
    """Return whether ``value``, which may come from a peer, names a site: of the own realm, or ``FINGERPRINT/SITE``."""
    if not isinstance(value, str) or "/" not in value:
        return is_name(value)
    realm, _, site = value.partition("/")
    return is_node_id(realm) and is_name(site)


def realm_of_site(site: str) -> str:
    """Return the fingerprint of the realm that a site is of; empty for the own one."""
    return site.partition("/")[0] if "/" in site else ""


def realm_of_topic(pattern: str) -> str:
    """Return the fingerprint of the realm that a topic or pattern in the directory is of; empty for the own one."""
    realm, slash, _ = pattern.partition("/") if "/" in pattern else ("", "", "")
    return realm if slash and is_node_id(realm) else ""


def check_name(value: str, what: str) -> str:
    """Return ``value`` if it is a valid name for a ``what`` (cluster, site, operation).

    Raises:
        ConfigError: it is not 1 to 128 of letters, digits, ``-``, ``_`` and ``.``.
    """
    if not is_name(value):
        article = "an" if what[0] in "aeiou" else "a"
        raise ConfigError(f"{value!r} is not {article} {what} name: use 1 to 128 of letters, digits, '-', '_' and '.'")
    return value
