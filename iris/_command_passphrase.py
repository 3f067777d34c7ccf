"""The passphrase of a wrapped file: typed, or taken from the environment; never from the command line.

What stands on a command line is seen by every user of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from iris.kernel.errors import ConfigError

VARIABLE = "IRIS_PASSPHRASE"

Verb = TypeVar("Verb", bound=Callable[..., Any])
Content = TypeVar("Content", covariant=True)


class Load(Protocol[Content]):
    """Reads a file that may be wrapped."""

    def __call__(self, path: Path, *, passphrase: str | None = None) -> Content: ...


def asks_passphrase(verb: Verb) -> Verb:
    """Give ``verb`` the flag ``--passphrase`` as its argument ``asks``, for ``read_passphrase``."""
    return click.option("--passphrase", "asks", is_flag=True, help=f"Ask for the passphrase (or set {VARIABLE}).")(verb)


def passphrase_of_environment() -> str | None:
    """Return the passphrase that the environment holds; None if it holds none."""
    return os.environ.get(VARIABLE) or None


def read_passphrase(asks: bool, *, twice: bool = False) -> str | None:
    """Return the passphrase of the environment or, if the user ``asks`` for it, the one that is typed; None if none."""
    found = passphrase_of_environment()
    if found is None and asks:
        typed: str = click.prompt("passphrase", hide_input=True, err=True, confirmation_prompt=twice)
        return typed
    return found


def load_wrapped(load: Load[Content], path: Path, passphrase: str | None) -> tuple[Content, str | None]:
    """Read a file, and return it with the passphrase that it is wrapped with; None if it is not.

    So a file that is written again is protected as it was, whatever the environment holds.

    Raises:
        ConfigError: it cannot be read, or not with this passphrase.
    """
    try:
        return load(path), None
    except ConfigError:
        if passphrase is None:
            raise
        return load(path, passphrase=passphrase), passphrase


def is_plain(load: Load[object], path: Path) -> bool:
    """Tell whether a file opens without a passphrase: then one that is typed is new, and proved by no file."""
    try:
        load(path)
    except ConfigError:
        return False
    return True
