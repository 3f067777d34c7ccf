"""``iris doctor``: says what is wrong with the set-up of a node, and the command that mends it."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Final

import click
from msgspec import structs

from iris.cli.connection import NodeOptions, connected, metrics_option, run_until_done
from iris.cli.operators.doctor.examination import Setup, examine
from iris.cli.operators.doctor.findings import Diagnosis, Level
from iris.cli.operators.doctor.unit import examine_unit
from iris.cli.printable import printable_line
from iris.cli.terminal import note, passphrase_of_environment, write_object

_STYLES: Final[dict[Level, str]] = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
@click.option(
    "--unit",
    metavar="UNIT",
    help="Examine a unit of systemd, as its user and with all that it has; as root.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="A line, or a JSON object, for each finding.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no finding that is ok.")
@metrics_option
@connected
@click.pass_context
def doctor(
    context: click.Context,
    connection: NodeOptions,
    command: tuple[str, ...],
    unit: str | None,
    output: str,
    quiet: bool,
) -> int:
    """Say what is wrong with the set-up of a node here, and the command that mends it.

    Give it the options of the node, or its COMMAND, such as: iris doctor run shop:prices --listen URL.

    It looks at Python and the packages, directories, the credential, addresses, seeds, the clock, the members'
    versions, the limit on open files, multicast DNS and the firewall. It changes nothing.

    The exit status is 1 if there is a problem; warnings do not count.
    """
    if unit is not None:
        if command:
            raise click.UsageError("a unit has a command of its own: give --unit or a command")
        flags = ["-q"] if quiet else []
        return run_until_done(partial(examine_unit, unit, [*flags, "-o", output]))
    if command:
        connection = _options_of(context, command)
    found: list[Diagnosis] = []
    write = _write_json if output == "json" else _write_text

    def report(finding: Diagnosis) -> None:
        found.append(finding)
        if not quiet or finding.level != "ok":
            write(finding)

    setup = Setup(
        credential=connection.credential,
        passphrase=passphrase_of_environment(),
        seeds=connection.seeds,
        listen=connection.listen,
        site=connection.site,
        dial_only=connection.dial_only,
        dial_networks=connection.dial_networks,
        metrics=connection.metrics,
    )

    async def look() -> int:
        if logging.getLogger("iris").level == logging.NOTSET:  # without -v: what the log would say are the findings
            logging.getLogger("iris").setLevel(logging.ERROR)
        await examine(setup, report)
        return 1 if any(finding.level == "problem" for finding in found) else 0

    status = run_until_done(look)
    if output == "text":
        note(_summary(found))
    return status


def _options_of(context: click.Context, command: tuple[str, ...]) -> NodeOptions:
    """Return what the command line of a node says of it; what it says wrongly is an error, as when it runs."""
    verb, *arguments = command
    verbs = context.find_root().command
    known = verbs.get_command(context, verb) if isinstance(verbs, click.Group) else None
    given = {} if known is None else known.make_context(f"iris {verb}", arguments).params
    if "credential" not in given or "metrics" not in given:
        raise click.UsageError(f"'iris {verb}' is no command of a node: give that of a member, bridge, gateway or door")
    return NodeOptions(
        credential=given["credential"],
        seeds=given["seeds"],
        listen=(*given.get("near", ()), *given["listen"]),
        site=given["site"],
        dial_only=given.get("dial_only", False),
        dial_networks=given["dial_networks"],
        metrics=given["metrics"],
    )


def _write_json(finding: Diagnosis) -> None:
    write_object(structs.asdict(finding))


def _write_text(finding: Diagnosis) -> None:
    level = finding.level.ljust(len("problem"))
    shown = click.style(level, fg=_STYLES[finding.level]) if sys.stdout.isatty() else level
    line = f"{finding.code}: {finding.cause}" + (f"; run: {finding.remedy}" if finding.remedy else "")
    click.echo(f"{shown}  {printable_line(line)}")


def _summary(found: list[Diagnosis]) -> str:
    problems = sum(finding.level == "problem" for finding in found)
    warnings = sum(finding.level == "warning" for finding in found)
    return f"problems: {problems}, warnings: {warnings}" if problems or warnings else "nothing is wrong"
