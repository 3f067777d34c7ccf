"""``iris run``: serve a service that a module defines."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path

import click

import iris
from iris.cli.connection import Interruption, NodeOptions, connected, metrics_option, run_until_interrupted
from iris.cli.supervision.places import options_at
from iris.cli.supervision.verb import reload_workers, run_workers
from iris.cli.supervision.worker import GRACE, Invocation
from iris.cli.terminal import POSITIVE, note

_IRIS = Path(iris.__file__).parent


@click.command()
@click.argument("target", metavar="MODULE:SERVICE")
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
    type=click.IntRange(min=1),
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
    target: str,
    cluster: str | None,
    drain_timeout: float,
    workers: int | None,
    reload: bool,
) -> int:
    """Be a member of a cluster: serve SERVICE, an iris.Service in the Python module MODULE.

    The module is looked for in the current directory first.

    Ctrl-C and SIGTERM have it leave in order: it takes no new work, callers turn to other members, and what it has
    begun is finished, within the drain time. A second one ends it at once.

    Of N workers each has a port of its own from those of --metrics and --listen on; for --listen there are N + 1, as
    a new worker serves before the old one leaves.
    """
    if workers is not None and reload:
        raise click.UsageError("--reload is for development, with one process: give it or --workers")
    worker = invocation.worker
    if worker is None and reload:
        return reload_workers(invocation.arguments, drain_timeout)
    if worker is None and workers is not None:
        return run_workers(invocation.arguments, connection, workers, drain_timeout)
    if worker is not None:
        worker.follow(drain_timeout)
        connection = options_at(connection, worker.place, drain_timeout + GRACE)
    service = load_service(target)
    name = cluster or service.name
    config = iris.Config(drain_timeout=drain_timeout)

    async def serve(interruption: Interruption) -> None:
        async with connection.open(name, config, member=True) as node, node.join(name, service) as membership:
            where = ", ".join(node.addresses) or "this machine"
            note(f"{node.id} serves {name} at {where}")
            if worker is not None:
                worker.serving()
            await interruption.wait()
            at_work = membership.statistics().at_work
            if at_work:
                hint = "" if worker else "; interrupt again to leave at once"
                note(f"{at_work} at work: leaving within {drain_timeout:g} s{hint}")

    return run_until_interrupted(serve, supervised=worker is not None)


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


def _where(error: Exception) -> str:
    """Return what happened and the line of the user's code where it did."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(_IRIS)]
    frame = own[-1] if isinstance(error, iris.IrisError) and own else frames[-1]
    return f"{frame.filename}:{frame.lineno}: {type(error).__name__}: {error}"
