"""``iris context``: named connections, so that nobody types credential, seeds and site with every verb.

They are files in ``$IRIS_HOME/contexts``, JSON of mode 0600, which hold the path of the credential and never its keys.
An option of the command line wins over its variable of the environment, that over the context: the one that
``IRIS_CONTEXT`` names, or else the one that ``iris context use`` chose.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, final

import click
from msgspec import Struct

from iris.cli.terminal import output_option, write_line, write_object
from iris.cluster.seed_urls import check_seed
from iris.kernel.errors import ConfigError
from iris.kernel.names import check_name, is_name
from iris.kernel.shapes import is_list
from iris.security.files import iris_home, load_credential, private_home, read_private, write_private

VARIABLE: Final = "IRIS_CONTEXT"
_CHOSEN: Final = ".chosen"
_WHAT: Final = "context"


@final
class Context(Struct, frozen=True, kw_only=True):
    """The options that a context stands for; an option that was not set is None or empty."""

    credential: str | None = None
    seeds: tuple[str, ...] = ()
    site: str | None = None


def chosen_context() -> Context | None:
    """Return the context of this process: of the environment, or the chosen one; None if there is neither.

    Raises:
        ConfigError: it does not exist or cannot be read.
    """
    name = os.environ.get(VARIABLE) or _chosen(_home())
    return None if name is None else _load(name)


def _home() -> Path:
    """Return where contexts are; ``add`` makes it."""
    return iris_home() / "contexts"


def _chosen(home: Path) -> str | None:
    try:
        if not (home / _CHOSEN).exists():  # as for most
            return None
    except OSError as error:
        raise ConfigError(
            f"contexts {home}: {error.strerror} to user {os.geteuid()}: make them this user's, or set IRIS_HOME to a "
            "directory that is"
        ) from None
    return read_private(home / _CHOSEN, _WHAT).decode(errors="replace").strip() or None


def _path(name: str) -> Path:
    check_name(name, "context")
    if name.startswith("."):
        raise ConfigError(f"{name!r} is not a context name: do not begin it with a dot")
    return _home() / f"{name}.json"


def _load(name: str) -> Context:
    path = _path(name)
    if not path.exists():
        raise ConfigError(f"there is no context {name!r}: 'iris context list' names those that there are")
    try:
        fields = json.loads(read_private(path, _WHAT))
        credential, seeds, site = fields["credential"], fields["seeds"], fields["site"]
        if not (_is_text(credential) and _is_text(site) and _are_texts(seeds)):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"context {path}: malformed; remove it and add it again ('iris context remove', 'add')"
        ) from None
    return Context(credential=credential, seeds=tuple(seeds), site=site)


def _are_texts(value: object) -> bool:
    return is_list(value) and all(map(_is_text, value))


def _is_text(value: object) -> bool:
    """Return whether a field can be what somebody has given: None, or a text without what no path or name has."""
    return value is None or (isinstance(value, str) and value.isprintable())


def _names() -> list[str]:
    names = (path.stem for path in _home().glob("*.json"))
    return sorted(name for name in names if is_name(name) and not name.startswith("."))


@click.group()
def context() -> None:
    """Keep connections under names: credential, seeds, site.

    The chosen context, or the one that IRIS_CONTEXT names, stands for options that are not given.
    """


@context.command()
@click.argument("name")
@click.option("--credential", type=click.Path(path_type=Path), metavar="FILE", help="Credential of a realm.")
@click.option("--seeds", multiple=True, metavar="URL", help="A node to join through; may be repeated.")
@click.option("--site", metavar="NAME", help="The site of this node.")
@click.option("--replace", is_flag=True, help="Overwrite the context if it exists.")
def add(name: str, credential: Path | None, seeds: tuple[str, ...], site: str | None, replace: bool) -> None:
    """Keep a connection as NAME; the credential is read once, to see that it can be."""
    path = _path(name)
    if path.exists() and not replace:
        raise ConfigError(f"context {name!r} exists already: give --replace, or another name")
    for seed in seeds:
        check_seed(seed)
    if site is not None:
        check_name(site, "site")
    if credential is not None:
        load_credential(credential)
    private_home("contexts", "contexts")
    fields = {"credential": None if credential is None else str(credential.absolute()), "seeds": seeds, "site": site}
    write_private(path, json.dumps(fields).encode(), _WHAT, replace=replace)


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Choose the context that verbs use from now on."""
    _load(name)
    write_private(_home() / _CHOSEN, name.encode(), _WHAT)


@context.command(name="list")
@output_option
def list_contexts(output: str) -> None:
    """Name all contexts; a star is before the one in use."""
    current = os.environ.get(VARIABLE) or _chosen(_home())
    for name in _names():
        if output == "json":
            write_object({"name": name, "in_use": name == current})
        else:
            write_line(f"{'*' if name == current else ' '} {name}")


@context.command()
@click.argument("name", required=False)
@output_option
def show(name: str | None, output: str) -> None:
    """Show what NAME stands for; without it, the context in use."""
    name = name or os.environ.get(VARIABLE) or _chosen(_home())
    if name is None:
        raise click.ClickException("no context is in use: choose one with 'iris context use'")
    found = _load(name)
    fields = {"name": name, "credential": found.credential, "seeds": found.seeds, "site": found.site}
    if output == "json":
        write_object(fields)
    else:
        for field, value in fields.items():
            text = " ".join(value) if isinstance(value, tuple) else value
            write_line(f"{field}\t{text or '-'}")


@context.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget NAME, also if its file is malformed; its credential file stays."""
    path, home = _path(name), _home()
    if not os.path.lexists(path):
        raise ConfigError(f"there is no context {name!r}: 'iris context list' names those that there are")
    path.unlink()
    if _chosen(home) == name:
        (home / _CHOSEN).unlink()
