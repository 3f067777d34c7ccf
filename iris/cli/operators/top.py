"""``iris top``: every node and cluster of the realm, live: rates, latency, queues, losses, versions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

import click
import trio
from msgspec import structs

from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.printable import printable_line
from iris.cli.terminal import POSITIVE, Whole, wide_output_option, write_line, write_object
from iris.node.realm import AbsentNode, ClusterView, NodeView, RealmView, open_survey
from iris.node.report import BlockedReport

if TYPE_CHECKING:
    from rich.live import Live

_SORTS: Final[dict[str, Callable[[NodeView], float | str | tuple[str, int]]]] = {
    "rate": lambda view: -(view.served_rate + view.asked_rate + view.published_rate),
    "queue": lambda view: -sum(served.queued for served in view.report.clusters),
    "losses": lambda view: -sum(view.report.lost.values()),
    "uptime": lambda view: view.report.uptime,
    "host": lambda view: (view.report.host, view.report.process),
    "name": lambda view: view.node.speaks_for,
}


@click.command()
@click.option("--sort", type=click.Choice(list(_SORTS)), default="rate", show_default=True, help="Order of the nodes.")
@click.option("--interval", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="Between surveys.")
@click.option("--timeout", type=POSITIVE, default=2.0, show_default=True, metavar="SECONDS", help="For each node.")
@click.option("--count", type=Whole(1), metavar="N", help="End after N views.")
@click.option("--once", is_flag=True, help="Print one view and end: as --count 1.")
@wide_output_option
@connected
def top(
    connection: NodeOptions, sort: str, interval: float, timeout: float, count: int | None, once: bool, output: str
) -> int:
    """Show all nodes and clusters of the realm, again and again, until Ctrl-C.

    A view comes from two surveys, INTERVAL apart: rates are those between them, and so are p50 and p99. With -o json
    each view is one JSON object.

    Needs a credential with the right to serve iris.nodes ('iris keys cluster REALM NAME --serve iris.nodes'), or the
    local realm. The exit status is 1 if no node answered.
    """
    views = 1 if once else count

    async def show() -> int:
        async with (
            connection.open() as node,
            open_survey(node, timeout=timeout, patience=min(timeout, interval / 2)) as survey,
        ):
            first = await survey.collect()
            while not first.nodes and any(absent.late for absent in first.silent):
                first = await survey.collect()
            if first.trouble is not None:
                raise click.ClickException(first.trouble)
            shown, due = 0, trio.current_time()
            with _Screen() as screen:
                while views is None or shown < views:
                    due = max(due + interval, trio.current_time())
                    await trio.sleep_until(due)
                    found = await survey.collect()
                    view = structs.replace(found, nodes=tuple(sorted(found.nodes, key=_SORTS[sort])))
                    if output == "json":
                        await trio.to_thread.run_sync(write_object, view.as_object())
                        sys.stdout.flush()
                    else:
                        await trio.to_thread.run_sync(screen.show, view, output == "wide", views is None)
                    shown += 1
        return 0

    return run_until_done(show, endless=views is None)


class _Screen:
    """The place of the tables: over each other on a terminal, else one after the other."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: RealmView, wide: bool, endless: bool) -> None:
        """Show one view; may block, so call it on a thread."""
        if not sys.stdout.isatty():
            for line in lines(view, wide):
                write_line(line)
            sys.stdout.flush()
            return
        from rich.console import Console, Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        head, shown_tables = rows(view, wide)
        tables: list[Table] = []
        for title, body in shown_tables:
            table = Table(*title, box=None)
            for row in body:
                table.add_row(*(Text(printable_line(cell)) for cell in row))
            tables.append(table)
        console = Console(markup=False, emoji=False)
        shown = Group(Text(head), *tables)
        if not endless:
            console.print(shown)
            return
        if self._live is None:
            self._live = Live(console=console, screen=True, auto_refresh=False)
            self._live.start()
        self._live.update(shown, refresh=True)


_Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def rows(view: RealmView, wide: bool) -> tuple[str, list[_Table]]:
    """Return the heading of a view, and its tables: clusters, nodes, and with whom something is wrong."""
    gone = [one for one in view.gone if one.reason != "left" or one.node.clusters]  # not every command that has ended
    head = f"{len(view.nodes)} nodes, {len(view.silent)} silent, {len(gone)} gone"
    clusters = [_cluster_row(cluster) for cluster in view.clusters()]
    nodes = [_node_row(seen, wide) for seen in view.nodes]
    more = ("site", "process", "links", "sent", "status") if wide else ()
    tables: list[_Table] = [
        (("cluster", "members", "rate/s", "p50", "p99", "running", "queue", "failed", "refused", "version"), clusters),
        (
            (
                "node",
                "name",
                "host",
                "serves",
                "served/s",
                "asked/s",
                "events/s",
                "queue",
                "lost",
                "uptime",
                "version",
                *more,
            ),
            nodes,
        ),
    ]
    troubles = [_absent_row(one, wide) for one in (*view.silent, *gone)]
    troubles += [
        _doubted_row(seen, view.doubted[seen.node.node], wide) for seen in view.nodes if seen.node.node in view.doubted
    ]
    troubles += [_blocked_row(seen, one, wide) for seen in view.nodes for one in seen.report.blocked]
    return head, [*tables, (("node", "name", "host", "since", "trouble"), troubles)] if troubles else tables


def lines(view: RealmView, wide: bool) -> list[str]:
    """Return a view as lines of columns with tabs between them, for cut and awk."""
    head, tables = rows(view, wide)
    return [head, *("\t".join(row) for title, body in tables for row in (title, *body))]


def _cluster_row(cluster: ClusterView) -> tuple[str, ...]:
    return (
        cluster.cluster,
        str(cluster.members),
        f"{cluster.rate:.1f}",
        seconds(cluster.p50),
        seconds(cluster.p99),
        str(cluster.running),
        str(cluster.queued),
        str(cluster.failed),
        str(cluster.refused),
        " ".join(cluster.versions),
    )


def _node_row(seen: NodeView, wide: bool) -> tuple[str, ...]:
    report = seen.report
    more = (
        (seen.node.site or "-", str(report.process), str(report.links), str(report.bytes_sent), seen.node.status)
        if wide
        else ()
    )
    return (
        seen.node.node if wide else seen.node.node[:8],
        seen.node.speaks_for,
        report.host,
        " ".join(served.cluster for served in report.clusters) or "-",
        f"{seen.served_rate:.1f}",
        f"{seen.asked_rate:.1f}",
        f"{seen.published_rate:.1f}",
        str(sum(served.queued for served in report.clusters)),
        str(sum(report.lost.values())),
        f"{report.uptime:.0f}s",
        report.version,
        *more,
    )


def _absent_row(absent: AbsentNode, wide: bool) -> tuple[str, ...]:
    return (
        absent.node.node if wide else absent.node.node[:8],
        absent.node.speaks_for,
        absent.host or "-",
        "-" if absent.seconds is None else f"{absent.seconds:.0f}s",
        absent.reason if absent.seconds is None else f"gone: {absent.reason}",
    )


def _doubted_row(seen: NodeView, why: str, wide: bool) -> tuple[str, ...]:
    return seen.node.node if wide else seen.node.node[:8], seen.node.speaks_for, seen.report.host, "-", why


def _blocked_row(seen: NodeView, one: BlockedReport, wide: bool) -> tuple[str, ...]:
    which = f"{one.cluster} {one.operation or ''}".strip() or "its program"
    why = f"{which} blocked it {one.count} times, {seconds(one.seconds)} in all: {one.place}"
    return seen.node.node if wide else seen.node.node[:8], seen.node.speaks_for, seen.report.host, "-", why


def seconds(value: float | None) -> str:
    """Return a time with its unit, - for none."""
    if value is None:
        return "-"
    return f"{value:.2f}s" if value >= 1 else f"{value * 1e3:.1f}ms" if value >= 1e-3 else f"{value * 1e6:.0f}us"
