"""``iris bench``: throughput and latency of Iris on this machine, or between two machines of a user."""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import AsyncGenerator, Sequence
from importlib.metadata import version
from typing import Any, Final

import click
import trio

import iris
from iris.bench.cases import OPEN, Case, Row, at_pace, machine, row_of, spread
from iris.bench.client import ALONE, NETWORK, among, measure
from iris.bench.service import CLUSTER, serve_bench
from iris.bench.swarm import open_swarm
from iris.cli.connection import NodeOptions, connected, run_until_done
from iris.cli.terminal import Finite, Whole, note, write_object
from iris.kernel.names import check_address, check_name

_LOOK: Final = 5.0
"""Seconds to find members."""

_WIDTH: Final = 120
"""Width of the table where the output is no terminal, in characters."""

_NAMES: Final = [case.name for case in ALONE]


@click.command()
@click.option("--serve", is_flag=True, help="Be the end that others measure, until Ctrl-C.")
@click.option("--cluster", metavar="NAME", help="With --serve: the cluster to join; by default the credential's own.")
@click.option("--to", "target", metavar="CLUSTER", help="Measure to the members of CLUSTER that run with --serve.")
@click.option(
    "--case",
    "names",
    multiple=True,
    type=click.Choice(_NAMES),
    metavar="NAME",
    help=f"Only this case; may be repeated. There are {', '.join(_NAMES)}.",
)
@click.option(
    "--seconds", type=Finite(0.05, 600), default=1.0, show_default=True, help="Length of one round of a case."
)
@click.option("--rounds", type=Whole(1, 1000), default=3, show_default=True, help="Rounds; the median counts.")
@click.option(
    "--pace",
    type=Whole(1, 100_000),
    default=OPEN.pace,
    show_default=True,
    help="Requests a second of the case open.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@connected
def bench(
    connection: NodeOptions,
    serve: bool,
    cluster: str | None,
    target: str | None,
    names: tuple[str, ...],
    seconds: float,
    rounds: int,
    pace: int,
    as_json: bool,
) -> int:
    """Measure Iris: messages, requests, latencies, tunnels and broadcasts, always encrypted.

    With no options both ends are on this machine, as processes of their own over loopback TCP. Between machines, run
    'iris bench --serve' on one or several, and 'iris bench --to CLUSTER' on another, each with a credential of the
    same realm.

    'sent' is the sender's rate. The case open sends by a schedule, and its latencies count from when a request was due;
    p99.999 takes 100,000 of them, as of '--pace 2000 --seconds 50'.
    """
    _check(connection, serve=serve, cluster=cluster, target=target, names=names)
    if serve:
        return run_until_done(lambda: _serve(connection, cluster), endless=True)
    chosen = [case for case in (ALONE if target is None else NETWORK) if case.name in names or not names]
    cases = [at_pace(case, pace) if case.kind == "open" else case for case in chosen]

    async def run() -> None:
        async with _open_ends(connection, target, cases) as (node, name):
            members = await _find(node, name)
            results = await _measure_all(node, name, members, cases, seconds, rounds)
        if as_json:
            write_object(results.as_json(seconds, rounds, len(members)))
        else:
            results.show()

    return run_until_done(run)


def _check(
    connection: NodeOptions, *, serve: bool, cluster: str | None, target: str | None, names: Sequence[str]
) -> None:
    """Raise for options that do not go together."""
    if serve and target is not None:
        raise click.UsageError("--serve and --to are the two ends: give one of them")
    if cluster is not None and not serve:
        raise click.UsageError("--cluster goes with --serve; the other end has --to")
    if serve and names:
        raise click.UsageError("--case is for the other end, the one with --to")
    if cluster is not None:
        check_name(cluster, "cluster")
    if target is not None:
        check_address(target)
        if local := set(names) - {case.name for case in NETWORK}:
            raise click.UsageError(f"{', '.join(sorted(local))} can be measured on one machine only, without --to")
    elif not serve and connection != NodeOptions(credential=None, seeds=(), listen=(), site=None):
        raise click.UsageError("with both ends on this machine there is nothing to connect to: give --to or --serve")


async def _serve(connection: NodeOptions, cluster: str | None) -> None:
    async with connection.open(cluster or CLUSTER) as node:
        name = cluster or (node.name if connection.credential else CLUSTER)
        ready = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_bench, node, name, ready)
            await ready.wait()
            where = ", ".join(node.addresses) or "this machine"
            note(f"{node.id} serves {name} at {where}; measure with: iris bench --to {name}")


@contextlib.asynccontextmanager
async def _open_ends(
    connection: NodeOptions, target: str | None, cases: Sequence[Case]
) -> AsyncGenerator[tuple[iris.Node, str]]:
    if target is None:
        async with open_swarm(max(case.sinks for case in cases)) as node:
            yield node, CLUSTER
    else:
        async with connection.open() as node:
            yield node, target


async def _find(node: iris.Node, cluster: str) -> list[iris.Member]:
    with contextlib.suppress(iris.RequestTimeout):
        await node.wait_for(cluster, timeout=_LOOK)
    members = sorted(
        (member for member in node.members(cluster) if member.status == "alive"), key=lambda member: member.node
    )
    if not members:
        raise iris.NoSuchCluster(f"no reachable member serves the cluster {cluster!r}: run 'iris bench --serve' there")
    return members


class _Results:
    """Results of the measurement."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self._rounds: dict[tuple[str, str], list[float]] = {}

    def add(self, case: Case, figures: dict[str, float]) -> None:
        """Add one round."""
        for name, value in figures.items():
            self._rounds.setdefault((case.name, name), []).append(value)

    def rows(self) -> list[tuple[Case, Row]]:
        """Every figure, in the order of the cases."""
        return [
            (case, row_of(case.name, figure, "iris", self._rounds[case.name, figure.name]))
            for case in self._cases
            for figure in case.figures
        ]

    def lost(self) -> list[dict[str, object]]:
        """Every case in which messages were lost."""
        sums = [(case.name, sum(self._rounds.get((case.name, "lost"), ()))) for case in self._cases]
        return [{"case": name, "system": "iris", "messages": int(lost)} for name, lost in sums if lost]

    def clock_error(self) -> float:
        """Microseconds by which ages may be wrong, because two machines have two clocks."""
        return max((max(found) for (_, name), found in self._rounds.items() if name == "clock_error"), default=0.0)

    def as_json(self, seconds: float, rounds: int, members: int) -> dict[str, Any]:
        """Return everything, in the schema of benchmarks/report.py."""
        return {
            "schema": 1,
            "machine": machine(),
            "run": {
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "seconds": seconds,
                "rounds": rounds,
                "members": members,
                "clock_error": self.clock_error(),
            },
            "systems": [{"system": "iris", "version": version("iris-mesh"), "encrypted": True}],
            "results": [row.as_json() for _, row in self.rows()],
            "lost": self.lost(),
        }

    def show(self) -> None:
        """Print the table."""
        from rich.console import Console
        from rich.table import Table

        table = Table("case", "", "median (min - max)", "unit", box=None)
        for case, row in self.rows():
            name = row.case.rpartition("/")[2]
            table.add_row(case.title if name == case.figures[0].name else "", name, spread(row), row.unit)
        Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
        for lost in self.lost():
            click.echo(f"lost messages: {lost['case']}: {lost['messages']:,}")
        if error := self.clock_error():
            click.echo(f"the clocks of the two machines could be compared to {error:,.0f} us: so far ages may be wrong")


async def _measure_all(
    node: iris.Node, cluster: str, members: Sequence[iris.Member], cases: Sequence[Case], seconds: float, rounds: int
) -> _Results:
    """Run every round of every case.  The rounds are outermost: a network that slows down slows every case down."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    cases = [among(case, len(members)) for case in cases]
    results = _Results(cases)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("", total=rounds * len(cases))
        for case in [case for _ in range(rounds) for case in cases]:
            progress.update(bar, description=case.title)
            results.add(case, await measure(node, cluster, members, case, seconds))
            progress.advance(bar)
    return results
