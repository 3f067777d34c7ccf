"""Entry point of the ``iris`` command: finds the verb, and turns every error into one line and an exit status.

Status 0: done; 1: the verb failed and the line says why; 2: the command line or the configuration is wrong; 130 and
143: interrupted by Ctrl-C or SIGTERM before the verb was done.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import final

import click

from iris.cli.printable import write_log, write_note
from iris.cli.supervision.worker import Invocation, Worker, worker_of_environment
from iris.kernel.errors import ConfigError, IrisError
from iris.kernel.loading import loading
from iris.kernel.shapes import is_group
from iris.kernel.unexpected import note_unexpected

VERBS = {
    "demo": "iris.demo.command",
    "run": "iris.cli.run",
    "request": "iris.cli.messaging",
    "broadcast": "iris.cli.messaging",
    "survey": "iris.cli.messaging",
    "pub": "iris.cli.messaging",
    "sub": "iris.cli.messaging",
    "tunnel": "iris.cli.messaging",
    "state": "iris.cli.messaging",
    "top": "iris.cli.operators.top",
    "dash": "iris.cli.operators.dash.command",
    "ping": "iris.cli.operators.ping",
    "trace": "iris.cli.operators.trace",
    "nodes": "iris.cli.operators.nodes",
    "clusters": "iris.cli.operators.nodes",
    "topics": "iris.cli.operators.topics",
    "books": "iris.cli.operators.books",
    "describe": "iris.cli.operators.nodes",
    "doctor": "iris.cli.operators.doctor.command",
    "bridge": "iris.cli.bridge",
    "log": "iris.cli.log",
    "connect": "iris.cli.connect",
    "queue": "iris.cli.operators.queues",
    "gateway": "iris.cli.gateway",
    "door": "iris.cli.door",
    "context": "iris.cli.operators.contexts",
    "keys": "iris.cli.keys.keys",
    "bench": "iris.bench.command",
}
"""The module of each verb, imported when the verb is used: the bridge needs Spark's packages, the rest do not."""

SUMMARIES = {
    "demo": "See every pattern at work: an airport, with Spark.",
    "run": "Be a member of a cluster: serve an iris.Service.",
    "request": "Ask one member of a cluster and print its reply.",
    "broadcast": "Tell every member of a cluster.",
    "survey": "Ask every member of a cluster and print each answer.",
    "pub": "Publish an event under a topic.",
    "sub": "Print the events of the topics that match patterns.",
    "tunnel": "Connect standard input and output to a member.",
    "state": "Read, change and follow the document of a cluster.",
    "top": "Show rates, latency, queues and losses of all nodes, live.",
    "dash": "Show the same in a browser, with charts.",
    "ping": "Print round trip times to a node or a cluster.",
    "trace": "Show the way of one request, with times hop by hop.",
    "nodes": "Show the members of clusters.",
    "clusters": "Show the clusters and how many members each has.",
    "topics": "Show who subscribes to what, and who publishes it.",
    "books": "Show what became of all that was sent.",
    "describe": "Show what the members of a cluster serve.",
    "doctor": "Say what is wrong with the set-up of a node here.",
    "bridge": "Store the events of topics on disk, for Spark.",
    "log": "Read the log of a bridge by hand.",
    "connect": "Copy events between a bridge and Kafka, each once.",
    "queue": "Look at the work queues of a bridge, and mend them.",
    "gateway": "Link this site to others, until Ctrl-C.",
    "door": "Let programs without a node in: HTTP, MQTT, nng.",
    "context": "Keep connections under names.",
    "keys": "Make and manage the keys of a realm.",
    "bench": "Measure Iris on this machine, or on a network.",
}
"""Texts of ``iris --help`` by verb.  To import all verbs for that took a fifth of its processor time."""

_LIKE = 0.65
"""Similarity from which a verb is named for a typed word: two letters changed places, or one is wrong."""

FAILED = 1
MISUSED = 2
INTERRUPTED = 130


@final
class Verbs(click.Group):
    """A group that imports a verb when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click passes it
        """Name the verbs in the order of ``iris --help``."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the verb called ``cmd_name``; None if there is none."""
        if cmd_name not in VERBS:
            return None
        with loading():
            command = getattr(importlib.import_module(VERBS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        _add_verbose_option(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; of one that there is not, name the verb that is most like it."""
        similar = difflib.get_close_matches(args[0], VERBS, n=1, cutoff=_LIKE)
        if args[0] not in VERBS and similar:
            ctx.fail(f"No such command {args[0]!r}; did you mean {similar[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of verbs."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def _set_log_level(_: click.Context, __: click.Parameter, verbose: int) -> None:
    if verbose:
        logging.getLogger("iris").setLevel(logging.INFO if verbose == 1 else logging.DEBUG)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="iris-mesh", message="iris %(version)s")
@click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_set_log_level,
    help="Tell who this node is and whom it found; twice: its counters at the end, too. Also after the verb.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What is logged: this and what is worse (warning; -v: info, -vv: debug).",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the log is written to standard error, one event a line.",
)
def iris(log_level: str | None, log_format: str) -> None:
    """Talk to services by their name: clusters are addressed, never hosts.

    With no credential, nodes of this user on this machine find each other and nothing has to be set up.
    """
    if log_level:
        logging.getLogger("iris").setLevel(log_level.upper())
    if log_format == "json":
        write_log(log_format)


def _add_verbose_option(command: click.Command) -> None:
    """Let a verb, and those below it, take ``-v`` as well; ``iris --help`` tells of it."""
    if not any("--verbose" in parameter.opts for parameter in command.params):
        command.params.append(
            click.Option(["-v", "--verbose"], count=True, expose_value=False, hidden=True, callback=_set_log_level)
        )
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _add_verbose_option(below)


def main() -> None:
    """Run the command of this process and exit with its status."""
    _open_closed_streams()
    write_log("text")
    sys.exit(run_command(sys.argv[1:]))


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed: else the next socket would take its place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest free number, so this one
        setattr(sys, name, open(number if _is_null(number) else os.devnull, mode))  # noqa: SIM115, PTH123 -- to the end


def _is_null(number: int) -> bool:
    return os.path.samestat(os.fstat(number), Path(os.devnull).stat())


def run_command(arguments: Sequence[str]) -> int:
    """Run ``iris`` with ``arguments`` and return its exit status."""
    worker: Worker | None = None
    try:
        worker = worker_of_environment()
        for argument in arguments:
            _check_text(argument)
        invocation = Invocation(tuple(arguments), worker)
        status: object = iris.main(list(arguments), prog_name="iris", standalone_mode=False, obj=invocation)
        sys.stdout.flush()
    except BaseException as error:
        cause = _first_cause(error)
        known = _explained(cause)
        if isinstance(cause, SystemExit):  # of the user's program, be it in a nursery
            raise cause from None
        if known is None:
            note_unexpected(error)
            raise
        code, text = known
        if text and (worker is None or not worker.failed(text)):
            write_note(text, logging.ERROR)
        return code
    return status if isinstance(status, int) else 0


def _explained(error: BaseException) -> tuple[int, str] | None:
    """Return the exit status, and what there is to say of an error; None if only a bug can cause it."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.ctx.get_help())
            return MISUSED, ""
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "iris"
            return MISUSED, f"{error.format_message().rstrip('.')} (see {path} --help)"
        case click.ClickException():
            return FAILED, error.format_message()
        case ConfigError():
            return MISUSED, str(error)
        case ModuleNotFoundError(name="rich"):
            return FAILED, "tables and bars on a terminal need rich: pip install 'iris-mesh[cli]'"
        case IrisError():
            return FAILED, "; ".join((str(error), *getattr(error, "__notes__", ())))
        case BrokenPipeError():
            # The reader of our output has seen enough.
            _drop_output()
            return FAILED, ""
        case OSError():
            _drop_output()
            return FAILED, _reason(error)
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED, ""
        case _:
            return None


def _first_cause(error: BaseException) -> BaseException:
    """Look into groups: of errors that came together, one that people can act on is shown."""
    return min(map(_first_cause, error.exceptions), key=_rank) if is_group(error) else error


def _rank(cause: BaseException) -> int:
    return 0 if isinstance(cause, IrisError | click.ClickException) else 1 if isinstance(cause, OSError) else 2


def _check_text(argument: str) -> None:
    """Refuse bytes that are no text here, where they have a name: as a name or a payload they could not be sent."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"the argument {argument!r} is not UTF-8") from None


def _reason(error: OSError) -> str:
    """Return what the system says, and of which file."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return reason
    file: object = error.filename
    return f"{file.decode(errors='backslashreplace') if isinstance(file, bytes) else file}: {reason}"


def _drop_output() -> None:
    """Let go of output that cannot be written: the interpreter must not find out again when it flushes at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
