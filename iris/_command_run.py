"""``iris run``: serve a service that a module defines."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

import click
import trio

import iris
from iris._command_connection import Connection, connected, run_until_done
from iris._command_output import note


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
@click.option("--cluster", metavar="NAME", help="The cluster to serve; the service's own name if not given.")
@connected
def run(connection: Connection, target: str, cluster: str | None) -> int:
    """Be a member of a cluster: serve SERVICE, an iris.Service in the Python module MODULE.

    The module is looked for in the current directory first. Ctrl-C lets running handlers finish and leaves.
    """
    service = load_service(target)
    name = cluster or service.name

    async def serve() -> None:
        async with connection.open(name) as node, node.join(name, service):
            where = ", ".join(node.addresses) or "this machine"
            note(f"{node.id} serves {name} at {where}")
            await trio.sleep_forever()

    return run_until_done(serve, endless=True)


def load_service(target: str) -> iris.Service:
    """Import the service called ``MODULE:SERVICE``.

    Raises:
        click.UsageError: there is no such module or service, or the module fails when it is imported.
    """
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute) or module_name.startswith("."):
        raise click.UsageError(f"{target!r} names no service: write MODULE:SERVICE, such as app:databases")
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"there is no module {module_name} in {directory} or among the installed ones"
            ) from None
        raise click.UsageError(f"{module_name} needs the module {error.name}, which is not installed") from None
    except Exception as error:  # noqa: BLE001 - whatever the user's module raises
        raise click.UsageError(f"{module_name} fails when it is imported: {_where(error)}") from None
    service = getattr(module, attribute, None)
    if not isinstance(service, iris.Service):
        there = ", ".join(name for name, value in vars(module).items() if isinstance(value, iris.Service))
        raise click.UsageError(f"{module_name} has no iris.Service called {attribute}; it has {there or 'none'}")
    return service


def _where(error: Exception) -> str:
    """Return what happened and the line of the user's code where it did."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {error}"
