"""``iris books``: what became of all that the nodes of the realm have sent."""

from __future__ import annotations

import datetime
from typing import NoReturn

import click
import trio
from msgspec import structs

from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.terminal import POSITIVE, Finite, Lines, note, open_lines, wide_output_option, write_object, write_table
from iris.kernel.names import NodeId
from iris.node.realm import BooksSurvey, nobody_answered
from iris.patterns.books import BookRow, matching

_COLUMNS = ("pattern", "name", "sent", "received", "expired", "refused", "lost", "in doubt", "waiting", "difference")


@click.command()
@click.argument("pattern", default=">")
@click.option(
    "--settle", type=Finite(0, 10), default=2.0, show_default=True, metavar="SECONDS",
    help="Wait so long for receivers that have something in hand.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Print a line for each loss from now on, until Ctrl-C.")
@click.option("--interval", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="Of --watch.")
@click.option("--timeout", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="For each node.")
@wide_output_option
@connected
def books(
    connection: NodeOptions, pattern: str, settle: float, watch: bool, interval: float, timeout: float, output: str
) -> int:
    """Show what became of all that nodes have sent under topics and clusters that match PATTERN.

    What is in doubt went to receivers that have died with it in hand. With -o wide there is a line for each sender and
    receiver. Needs the same right as 'iris top'. The exit status is 1 if no node answered, or a receiver claims what it
    was not sent (a difference that is not 0).
    """
    matching(pattern)

    async def show() -> int:
        async with connection.open() as node:
            survey = BooksSurvey(node, pattern, settle=settle, timeout=timeout)
            if watch:
                await survey.losses()
                async with open_lines() as lines:
                    note(f"losses of {pattern} from now on")
                    await follow(survey, lines)
            view = await survey.collect()
            if len(view.silent) >= len(node.nodes()):
                raise click.ClickException(nobody_answered([*view.silent.values()]))
        if output == "json":
            for sender, row in view.rows:
                write_object({"sender": sender, **structs.asdict(row)})
        elif output == "wide":
            write_table(("sender", "receiver", *_COLUMNS), (_wide(*of) for of in view.rows))
        else:
            write_table(_COLUMNS, map(_cells, _together(view.rows)))
        for silent, why in view.silent.items():
            note(f"node {silent} is not in it: {why}")
        if view.omitted:
            note(f"{view.omitted} rows are not in it: nodes report those with the most that was not received")
        return int(any(row.difference for _, row in view.rows))

    async def follow(survey: BooksSurvey, lines: Lines) -> NoReturn:
        while True:
            await trio.sleep(interval)
            for sender, loss in await survey.losses():
                if output == "json":
                    await lines.write_object({"sender": sender, **structs.asdict(loss)})
                else:
                    now = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
                    cells = now, sender, loss.pattern, loss.name, loss.receiver or "-", loss.reason, str(loss.count)
                    await lines.write("\t".join(cells))

    return run_until_done(show, endless=watch)


def _together(rows: tuple[tuple[NodeId, BookRow], ...]) -> list[BookRow]:
    """Return one row for each pattern and name."""
    together: dict[tuple[str, str], BookRow] = {}
    for _, row in rows:
        before = together.get((row.pattern, row.name))
        together[row.pattern, row.name] = row if before is None else before + row
    return [*together.values()]


def _cells(row: BookRow) -> tuple[str, ...]:
    lost = ", ".join(f"{count} {reason}" for reason, count in row.lost.items())
    numbers = (row.sent, row.received, row.expired, row.refused)
    return (
        row.pattern, row.name, *map(str, numbers), lost or "0", str(row.in_doubt), str(row.waiting), str(row.difference)
    )  # fmt: skip


def _wide(sender: NodeId, row: BookRow) -> tuple[str, ...]:
    return sender, row.receiver or "-", *_cells(row)
