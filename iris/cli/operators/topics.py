"""``iris topics``: who subscribes to what, and who publishes it."""

from __future__ import annotations

import click
import trio
from msgspec import structs

from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.terminal import POSITIVE, note, wide_output_option, write_object, write_table
from iris.node.realm import PatternView, TopicsSurvey, nobody_answered

_COLUMNS = ("pattern", "group", "subscribers", "publishers", "delivered/s", "published/s", "waiting", "lost")


@click.command()
@click.option("--interval", type=POSITIVE, default=1.0, show_default=True, metavar="SECONDS", help="Of the rates.")
@click.option("--timeout", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="For each node.")
@wide_output_option
@connected
def topics(connection: NodeOptions, interval: float, timeout: float, output: str) -> int:
    """Show each pattern that nodes subscribe to, with its subscribers and the publishers of topics that match.

    A topic on which nodes publish and nobody subscribes has a line of its own. All nodes of the site are asked twice,
    INTERVAL apart: rates are those between. With -o wide nodes are named. Needs the same right as 'iris top'. The exit
    status is 1 if no node answered.
    """

    async def show() -> int:
        async with connection.open() as node:
            survey = TopicsSurvey(node, timeout=timeout)
            first = await survey.collect()
            if len(first.silent) >= len(node.nodes()):
                raise click.ClickException(nobody_answered([*first.silent.values()]))
            await trio.sleep(interval)
            view = await survey.collect()
        if output == "json":
            for row in view.patterns:
                write_object(structs.asdict(row))
        else:
            write_table(_COLUMNS, (_cells(row, wide=output == "wide") for row in view.patterns))
        for silent, why in view.silent.items():
            note(f"node {silent} is not in it: {why}")
        if view.omitted:
            note(f"{view.omitted} subscriptions and topics are not in it: nodes report those with the most events")
        return 0

    return run_until_done(show)


def _cells(row: PatternView, *, wide: bool) -> tuple[str, ...]:
    subscribers, publishers = (
        (" ".join(nodes) or "-" if wide else str(len(nodes))) for nodes in (row.subscribers, row.publishers)
    )
    return (
        row.pattern,
        row.group or "-",
        f"{subscribers}, durable" if row.durable else subscribers,
        publishers,
        f"{row.delivered_rate:.1f}",
        f"{row.published_rate:.1f}",
        str(row.waiting),
        str(row.lost),
    )
