"""Argument validation: what users pass to a node is checked before anything is done with it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TypeVar

from iris.kernel.errors import ConfigError
from iris.kernel.names import check_address, check_key, check_name
from iris.kernel.numerals import as_float, as_whole, shown

T = TypeVar("T")


def check_is(value: object, kind: type[T], name: str) -> T:
    """Return an object that is made by a class of Iris's own; raise ConfigError for anything else."""
    if inspect.isclass(value) and issubclass(value, kind):
        raise ConfigError(f"{name} is the class {value.__name__}: make an object of it, {value.__name__}(...)")
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {shown(value)}: use iris.{kind.__name__}(...)")
    return value


def check_flags(**flags: object) -> None:
    """Raise ConfigError unless all choices are True or False."""
    for name, value in flags.items():
        if value is not True and value is not False:
            raise ConfigError(f"{name} is {shown(value)}: use True or False")


def check_lists(**lists: object) -> None:
    """Raise ConfigError unless all are lists of texts: of addresses or networks."""
    for name, values in lists.items():
        things = "networks" if name == "dial_networks" else "addresses"
        if isinstance(values, str):
            raise ConfigError(f"{name} is {values!r}: use a list of {things}, [{values!r}]")
        if not isinstance(values, Iterable):
            raise ConfigError(f"{name} is {values!r}: use a list of {things}")


def check_count(value: object, name: str) -> int:
    """Return a number of things to wait for; raise ConfigError unless it is a whole number from 0 on."""
    count = as_whole(value)
    if count is None or count < 0:
        raise ConfigError(f"{name} is {shown(value)}: use a whole number, 0 or above")
    return count


def check_request(cluster: str, operation: str | None, key: str | None) -> None:
    """Check the arguments that address a request.

    The name of the cluster is looked at when there is none of that name.

    Raises:
        ConfigError: one of them cannot be.
    """
    if type(cluster) is not str:
        check_address(cluster)
    if operation is not None:
        check_name(operation, "operation")
    if key is not None:
        check_key(key)


def check_wait(wait: float, name: str = "wait") -> float:
    """Return the seconds that a call waits, 0 for not at all; raise ConfigError if that cannot be waited for."""
    seconds = wait if type(wait) is float else as_float(wait)
    if not seconds >= 0:
        raise ConfigError(f"{name} is {shown(wait)}: use a number of seconds, 0 for not at all")
    return seconds


def is_wait(wait: object) -> bool:
    """Return whether something is more than the ``wait=0.0`` of those who do not wait: it is a time, or none at all."""
    return type(wait) is not float or wait != 0


def check_timeout(timeout: float, name: str = "timeout") -> float:
    """Return a time in seconds; raise ConfigError if it cannot be waited for."""
    seconds = timeout if type(timeout) is float else as_float(timeout)
    if not seconds > 0:
        raise ConfigError(f"{name} is {shown(timeout)}: use seconds above 0")
    return seconds


def check_whom(cluster: str, operation: str | None) -> None:
    """Raise ConfigError unless the arguments can address a survey or a tunnel."""
    check_address(cluster)
    if operation is not None:
        check_name(operation, "operation")


def check_between(value: float, name: str, least: float, most: float) -> float:
    """Return seconds; raise ConfigError unless they are within bounds."""
    seconds = check_timeout(value, name)
    if not least <= seconds <= most:
        raise ConfigError(f"{name} is {shown(value)}: use {least:g} to {most:g} seconds")
    return seconds
