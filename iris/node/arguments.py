"""Argument validation: what users pass to a node is checked before anything is done with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TypeVar

from iris.cluster.balancing import AtSite
from iris.cluster.membership import Member
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId, check_address, check_key, check_name, is_node_id
from iris.kernel.numerals import as_float, as_whole, shown

T = TypeVar("T")


def check_is(value: object, kind: type[T], name: str) -> T:
    """Return an object that is made by a class of Iris's own.

    Raises:
        ConfigError: it is something else.
    """
    if inspect.isclass(value) and issubclass(value, kind):
        raise ConfigError(f"{name} is the class {value.__name__}: make an object of it, {value.__name__}(...)")
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}: use iris.{kind.__name__}(...)")
    return value


def check_flags(**flags: object) -> None:
    """Look at choices.

    Raises:
        ConfigError: one is not True or False.
    """
    for name, value in flags.items():
        if value is not True and value is not False:
            raise ConfigError(f"{name} is {shown(value)}: use True or False")


def check_lists(**lists: object) -> None:
    """Look at lists of texts, of addresses or networks.

    Raises:
        ConfigError: one is no list, or a single text.
    """
    for name, values in lists.items():
        things = "networks" if name == "dial_networks" else "addresses"
        if isinstance(values, str):
            raise ConfigError(f"{name} is {values!r}: use a list of {things}, [{values!r}]")
        if not isinstance(values, Iterable):
            raise ConfigError(f"{name} is {values!r}: use a list of {things}")


def check_count(value: object, name: str) -> int:
    """Return a number of things to wait for.

    Raises:
        ConfigError: it is not a whole number from 0 on.
    """
    count = as_whole(value)
    if count is None or count < 0:
        raise ConfigError(f"{name} is {shown(value)}: use a whole number, 0 or above")
    return count


def check_request(
    cluster: str,
    operation: str | None,
    key: str | None,
    *,
    idempotent: bool,
    idempotency_key: str | None = None,
    hedge: float | None = None,
) -> float | None:
    """Check the arguments that address a request, and how often it may run.

    The name of the cluster is looked at when there is none of that name.

    Returns:
        Seconds after which a second member is asked; None: never.

    Raises:
        ConfigError: one of them cannot be.
    """
    if type(cluster) is not str:
        check_address(cluster)
    if idempotent is not True and idempotent is not False:
        check_flags(idempotent=idempotent)
    if operation is not None:
        check_name(operation, "operation")
    if key is not None:
        check_key(key)
    if idempotency_key is not None and (check_key(idempotency_key) == "" or not idempotency_key.isprintable()):
        raise ConfigError(f"idempotency_key is {idempotency_key!r}: use 1 to 256 bytes of printable text")
    if hedge is None:
        return None
    if not idempotent and idempotency_key is None:
        raise ConfigError("hedge is for requests with idempotent=True only: two members may run them")
    return check_timeout(hedge, "hedge")


def check_wait(wait: float, name: str = "wait") -> float:
    """Return how many seconds a call waits, as for a first member; 0 for not at all.

    Raises:
        ConfigError: it is none that can be waited for.
    """
    seconds = wait if type(wait) is float else as_float(wait)
    if not seconds >= 0:
        raise ConfigError(f"{name} is {shown(wait)}: use a number of seconds, 0 for not at all")
    return seconds


def check_timeout(timeout: float, name: str = "timeout") -> float:
    """Return a time in seconds.

    Raises:
        ConfigError: it is none that can be waited for.
    """
    seconds = timeout if type(timeout) is float else as_float(timeout)
    if not seconds > 0:
        raise ConfigError(f"{name} is {shown(timeout)}: use seconds above 0")
    return seconds


def check_whom(cluster: str, operation: str | None) -> None:
    """Check the arguments that address a survey or a tunnel.

    Raises:
        ConfigError: one of them cannot be.
    """
    check_address(cluster)
    if operation is not None:
        check_name(operation, "operation")


def check_preference(prefer: Member | NodeId | None, site: str | None) -> NodeId | AtSite | None:
    """Return the preferred receiver of a request: a member, or any member at a site.

    Raises:
        ConfigError: both are given, the member is none, or the site has no name of one.
    """
    if site is None:
        node = prefer.node if isinstance(prefer, Member) else prefer
        if node is not None and not is_node_id(node):
            raise ConfigError(f"prefer is {prefer!r}: use a member, as node.members returns them, or its id")
        return node
    if prefer is not None:
        raise ConfigError("prefer and prefer_site exclude each other: prefer names one member, at whatever site")
    return AtSite(check_name(site, "site"))


def check_between(value: float, name: str, least: float, most: float) -> float:
    """Return seconds within bounds.

    Raises:
        ConfigError: they are not.
    """
    seconds = check_timeout(value, name)
    if not least <= seconds <= most:
        raise ConfigError(f"{name} is {shown(value)}: use {least:g} to {most:g} seconds")
    return seconds
