"""``iris books``: what became of all that the nodes of the realm have sent."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

import click
import trio

from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.printable import printable_line
from iris.cli.terminal import POSITIVE, Finite, note, takes_wide_output, write_object, write_table
from iris.kernel.names import NodeId
from iris.node.realm import BooksSurvey, nobody_answered
from iris.patterns.books import BookRow, matching

_COLUMNS = ("pattern", "name", "sent", "received", "expired", "refused", "lost", "in doubt", "waiting", "difference")

_Key = tuple[NodeId, str, str, str | None]


@click.command()
@click.argument("pattern", default=">")
@click.option(
    "--settle", type=Finite(0, 10), default=2.0, show_default=True, metavar="SECONDS",
    help="Wait so long for receivers that have something in hand.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Print a line for each loss from now on, until Ctrl-C.")
@click.option("--interval", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="Of --watch.")
@click.option("--timeout", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="For each node.")
@takes_wide_output
@connected
def books(
    connection: NodeOptions, pattern: str, settle: float, watch: bool, interval: float, timeout: float, output: str
) -> int:
    """Show what became of all that nodes have sent under topics and clusters that match PATTERN.

    Every message is in one column: of a broadcast, survey or request one for each member that was asked, of an event
    one for each subscription. What is in doubt went to receivers that have died with it in hand. With -o wide there is
    a line for each sender and receiver. Needs the same right as 'iris top'. The exit status is 1 if no node answered,
    or a receiver claims what it was not sent (a difference that is not 0).
    """
    matching(pattern)

    async def show() -> int:
        async with connection.open() as node:
            survey = BooksSurvey(node, pattern, settle=settle, timeout=timeout)
            view = await survey.take()
            if len(view.silent) >= len(node.nodes()):
                raise click.ClickException(nobody_answered([*view.silent.values()]))
            if watch:
                await follow(survey, dict(_losses(view.rows)))
        if output == "json":
            for sender, row in view.rows:
                write_object({"sender": sender, **dataclasses.asdict(row)})
        elif output == "wide":
            write_table(("sender", "receiver", *_COLUMNS), (_wide(*of) for of in view.rows))
        else:
            write_table(_COLUMNS, map(_cells, _together(view.rows)))
        for silent, why in view.silent.items():
            note(f"node {silent} is not in it: {why}")
        if view.omitted:
            note(f"{view.omitted} rows are not in it: nodes report those with the most that was not received")
        return int(any(row.difference for _, row in view.rows))

    async def follow(survey: BooksSurvey, known: dict[_Key, dict[str, int]]) -> None:
        while True:
            await trio.sleep(interval)
            present: dict[_Key, dict[str, int]] = {}
            for key, losses in _losses((await survey.take()).rows):
                before = known.get(key, {})
                for reason, count in losses.items():
                    if count > before.get(reason, 0):
                        write(key, reason, count - before.get(reason, 0))
                present[key] = {reason: max(count, before.get(reason, 0)) for reason, count in losses.items()}
            known = present

    def write(key: _Key, reason: str, count: int) -> None:
        fields = {**dict(zip(("sender", "pattern", "name", "receiver"), key, strict=True)), "reason": reason}
        if output == "json":
            write_object({**fields, "count": count})
        else:
            now = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
            click.echo(printable_line("\t".join((now, *(str(field or "-") for field in fields.values()), str(count)))))

    return run_until_done(show, endless=watch)


def _losses(rows: tuple[tuple[NodeId, BookRow], ...]) -> Iterator[tuple[_Key, dict[str, int]]]:
    for sender, row in rows:
        losses = {"expired": row.expired, "refused": row.refused, "in doubt": row.in_doubt, **row.lost}
        yield (sender, row.pattern, row.name, row.receiver), losses


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
