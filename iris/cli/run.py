"""``iris run``: serve a service that a module defines."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import sysconfig
import traceback
from functools import partial
from pathlib import Path
from typing import Final

import click

import iris
from iris.cli.connection import Interruption, NodeOptions, connected, metrics_option, run_until_interrupted
from iris.cli.readiness import Readiness
from iris.cli.serving import Serving
from iris.cli.supervision.places import options_at
from iris.cli.supervision.verb import reload_workers, run_workers
from iris.cli.supervision.worker import GRACE, Invocation
from iris.cli.terminal import POSITIVE, Whole
from iris.kernel.shapes import is_group
from iris.patterns.service import is_of_lifespan, noted_mend

_log: Final = logging.getLogger("iris")

_OTHERS: Final = (
    Path(iris.__file__).parent,
    *map(Path, {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}),
)
"""Directories of code that users have not written."""


@click.command()
@click.argument("targets", metavar="MODULE:SERVICE...", nargs=-1, required=True)
@click.option("--cluster", metavar="NAME", help="The cluster to serve; the service's own name if not given.")
@click.option(
    "--drain-timeout",
    type=POSITIVE,
    default=iris.Config().drain_timeout,
    show_default=True,
    metavar="SECONDS",
    help="When it is to end: how long what it has begun may take.",
)
@click.option(
    "--workers",
    type=Whole(min=1),
    metavar="N",
    help="Run N processes under a supervisor, which starts the dead again; SIGHUP replaces them one by one.",
)
@click.option("--reload", is_flag=True, help="For development: start anew when a Python file here changes.")
@metrics_option
@click.pass_obj
@connected
def run(
    connection: NodeOptions,
    invocation: Invocation,
    targets: tuple[str, ...],
    cluster: str | None,
    drain_timeout: float,
    workers: int | None,
    reload: bool,
) -> int:
    """Be a member of a cluster: serve SERVICE, an iris.Service in the Python module MODULE.

    The module is looked for in the current directory first. Several services share one node.

    An iris.aio.Service runs in an asyncio event loop (uvloop, where it is installed), an iris.Service in trio.

    Ctrl-C and SIGTERM have it leave in order: it takes no new work, and what it has begun is finished, within the drain
    time. A second one ends it at once.

    Of N workers each has a port of its own from those of --metrics and --listen on; for --listen there are N + 1, as
    a new worker serves before the old one leaves.
    """
    if workers is not None and reload:
        raise click.UsageError("--reload is for development, with one process: give it or --workers")
    worker = invocation.worker
    if worker is None and reload:
        return reload_workers(invocation.arguments, drain_timeout, Readiness(os.environ))
    if worker is None and workers is not None:
        return run_workers(invocation.arguments, connection, workers, drain_timeout, Readiness(os.environ))
    if worker is not None:
        worker.follow(drain_timeout)
        connection = options_at(connection, worker.place, drain_timeout + GRACE, os.environ)
    if cluster is not None and len(targets) > 1:
        raise click.UsageError("--cluster names the cluster of one service: leave it out, or give one service")
    services = [(cluster or service.name, service) for service in map(load_service, targets)]
    names = [name for name, _ in services]
    if twice := [name for name in names if names.count(name) > 1]:
        raise click.UsageError(f"two services are of the cluster {twice[0]}: one node serves a cluster once")
    config = iris.Config(drain_timeout=drain_timeout)
    serving = Serving(services, drain_timeout, worker or Readiness(os.environ))
    opening = partial(connection.open, names[0], config, member=True)

    async def serve_in_trio(interruption: Interruption) -> None:
        async with opening() as node:
            await serving.serve_in_trio(node, interruption.wait)

    try:
        if serving.is_of_asyncio:
            from iris.cli.event_loop import serve_in_asyncio

            return serve_in_asyncio(serving, opening, supervised=worker is not None)
        return run_until_interrupted(serve_in_trio, supervised=worker is not None)
    except Exception as error:
        if (cause := _of_lifespan(error)) is None:
            raise
        _log.info("%s", cause.__notes__[0], exc_info=cause, extra={"cause": "lifespan"})
        raise click.ClickException("; ".join((_where(cause), *cause.__notes__))) from None


def load_service(target: str) -> iris.Service:
    """Import the service called ``MODULE:SERVICE``.

    Raises:
        click.UsageError: there is no such module or service.
        ConfigError: the module fails when it is imported.
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
        raise iris.ConfigError(f"{module_name} needs the module {error.name}, which is not installed") from None
    except Exception as error:  # noqa: BLE001 - whatever the user's module raises
        raise iris.ConfigError(f"{module_name} fails when it is imported: {_where(error)}") from None
    service = getattr(module, attribute, None)
    if not isinstance(service, iris.Service):
        there = ", ".join(name for name, value in vars(module).items() if isinstance(value, iris.Service))
        raise click.UsageError(f"{module_name} has no iris.Service called {attribute}; it has {there or 'none'}")
    return service


def _of_lifespan(error: BaseException) -> BaseException | None:
    """Return the error that the lifespan of a service has raised, alone or among others; None if it is another one."""
    if is_of_lifespan(error):
        noted_mend(error)
        return error
    return next(filter(None, map(_of_lifespan, error.exceptions)), None) if is_group(error) else None


def _where(error: BaseException) -> str:
    """Return what happened and the line of the user's code where it did, or of what that has called."""
    while is_group(error):
        (error, *_) = error.exceptions
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(Path(frame.filename))]
    frame = own[-1] if own else frames[-1]
    return f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {error}"


def _is_own(file: Path) -> bool:
    """Return whether a file is the user's: not of Iris, of Python or installed, and there."""
    return file.is_file() and not any(file.is_relative_to(other) for other in _OTHERS)
