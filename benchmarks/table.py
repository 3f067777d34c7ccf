"""The report as people read it: docs/explanation/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.report import OURS, Report
from iris.bench.cases import Case, Figure, Row, machine, spread

HEAD = """\
# Benchmarks

Written by `make bench`; do not edit. Every system does the same work on the same machine in the same run: separate
processes on loopback TCP, started anew for each trial, rounds interleaved (A B C, A B C, ...). A figure is the median
of all rounds, with the least and the greatest in brackets. Iris always encrypts; the column *sealed* says who else
does. *Ratio* is Iris divided by that system: above 1 is better for Iris where more is better, below 1 where less is.

The peers' Python packages come with `make bench`. Two of them need a server besides, `nats-server` and `redis-server`
(Debian packages of these names), which must be on the `PATH`. What is not there is left out, and *Not measured* at the
end says why.

Each system is measured at what it is used for. grpc.aio answers requests, redis-py publishes. Blocking sockets (pyzmq
and CURVE) are not paced: their user waits in the call; pyzmq.asyncio is. Bulk is compared with the bare streams and
pynng on trio, one message after the other; what the others do with 64 KiB is in the case of that size. Broadcast,
start, memory and members are Iris's own. Options are those that a user who wants speed sets: nats-server and
redis-server without limits on what waits, NATS read by callbacks, zenoh blocking instead of dropping, redis-py with
pipelines, ZeroMQ without a copy of 64 KiB. Its limits on what waits stay as they are, because higher ones were slower;
asyncio has its own event loop.

Your own machine or network is measured by [`iris bench`](command.md#iris-bench): Iris alone, the same cases, nothing
to install. With no options both ends are on this machine; between machines, `iris bench --serve` runs on one or
several, and `iris bench --to CLUSTER` on another, with credentials of the same realm.
"""

TAIL = """\
## The JSON

`make bench ARGS="--json FILE"` writes one object:

| key | value |
|---|---|
| `schema` | 1; grows when the meaning of a key changes |
| `machine` | `cpu`, `cores`, `memory_gib`, `system`, `python` |
| `run` | `date`, `seconds` per trial, `rounds`, `quick` |
| `systems` | list of `system`, `version`, `encrypted` |
| `results` | list of `case`, `system`, `unit`, `better` (higher or lower), `median`, `min`, `max`, `rounds` |
| `ratios` | list of `case`, `peer`, `unit`, `better`, `ratio`: the median of Iris divided by that of the peer |
| `lost` | list of `case`, `system`, `messages` in all rounds together; what is not listed lost none |
| `absent` | list of `system`, `case` (or null for all), `reason` |

In `results` and `ratios` a `case` is its name and that of the figure, as in `request-1/p50`; elsewhere its name alone.
`rounds` is a number in `run`, and in `results` the list of what each round found, in their order: fewer than in `run`
if some failed. A ratio is left out where the median of the peer is 0.

`iris bench --json` writes the same without `ratios` and `absent`; its `run` has no `quick`, but `members`, the
receivers that were found, and `clock_error`: between two machines, the microseconds by which ages may be wrong, because
each has its own clock.
"""


def write_table(report: Report, path: Path, plots: Sequence[Path] = ()) -> None:
    """Write the report as Markdown to ``path``, with the ``plots`` of its cases."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = {plot.stem.removeprefix("bench-"): plot.relative_to(path.parent).as_posix() for plot in plots}
    path.write_text("\n".join(_lines(report, pictures)) + "\n")


def _lines(report: Report, pictures: Mapping[str, str]) -> Iterator[str]:
    yield HEAD
    here = machine()
    yield (
        f"Measured on {report.run['date']}: {here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, "
        f"{here['system']}, Python {here['python']}; {report.run['rounds']} rounds of {report.run['seconds']} s"
        f"{' (quick)' if report.run['quick'] else ''}. "
        + ", ".join(f"{system.name} {system.version()}" for system in report.systems)
        + ".\n"
    )
    sealed = {system.name: system.encrypted for system in report.systems}
    for case in report.cases:
        if case.name in pictures:
            yield f"![{case.title}]({pictures[case.name]})\n"
        for figure in case.figures:
            yield from _section(report, case, figure, sealed)
    if losses := list(report.losses()):
        yield "## Lost messages\n"
        yield from (f"- {system.name}, {case.title}: {lost:,} in all rounds together" for case, system, lost in losses)
        yield ""
    if report.absent:
        yield "## Not measured\n"
        yield from (
            f"- {absence.system}{f', {absence.case}' if absence.case else ''}: {absence.reason}"
            for absence in report.absent
        )
        yield ""
    yield TAIL


def _section(report: Report, case: Case, figure: Figure, sealed: dict[str, bool]) -> Iterator[str]:
    rows = [row for system in report.systems if (row := report.row(case, figure, system.name)) is not None]
    if not rows:
        return
    label = "" if len(case.figures) == 1 else f", {figure.name}"
    yield f"## {case.title}{label}\n"
    yield f"| system | sealed | {figure.unit} | ratio |"
    yield "|---|---|---|---|"
    ours = next((row for row in rows if row.system == OURS), None)
    for row in ranked(rows, figure):
        ratio = "" if ours is None or row is ours or not row.median else f"{ours.median / row.median:.2f}"
        name = f"**{row.system}**" if row is ours else row.system
        yield f"| {name} | {'yes' if sealed[row.system] else 'no'} | {spread(row)} | {ratio} |"
    yield ""


def ranked(rows: Iterable[Row], figure: Figure) -> list[Row]:
    """Return ``rows`` with the best first."""
    return sorted(rows, key=lambda row: row.median, reverse=figure.better == "higher")
