"""The report as people read it: docs/explanation/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.load import LIMIT
from benchmarks.report import OURS, OURS_IN_ASYNCIO, Absence, Report
from benchmarks.system import System
from iris.bench.cases import CASES, Case, Figure, Row, machine, spread

HEAD = f"""\
# Benchmarks

<!-- index: latency, throughput, performance -->

Written by `make bench`; do not edit. Every system does the same work in the same run: separate processes on loopback
TCP, started anew for each trial, rounds interleaved (A B C, A B C, ...). A figure is the median of all rounds, with
the least and the greatest in brackets. A run is refused where other programs take more than {LIMIT * 100:.0f} % of
the processors. [Queues](../howto/events/durable_jobs.md) and [the bridge](measured/spark.md) stand on pages of their
own, beside JetStream.

- **`iris`** is Iris with trio at both ends, `iris.aio` with asyncio at both ends. `iris.aio asking` and `iris.sync
  asking` are programs of asyncio, and of threads, that ask a service written with trio.
- **`iris /`, `iris.aio /`**: the figure of Iris divided by that of the row: above 1 is better, of latencies
  below 1.
- **processor**: microseconds of processor time for each message that arrived, or request that was answered: of the
  source, all sinks together, and the server between.
- **without**: what Iris's program does and this one does not.
  - *encryption*: Iris always encrypts, with post-quantum keys.
  - *retries*: a request whose member is lost is asked again elsewhere, within its deadline.
  - *balance*: a member that has less to do is asked. ZeroMQ and nng take turns.
  - *discovery*: members are found by their cluster's name, without a server or addresses.
  - *event loop*: the thread that waits for a message can do other work meanwhile.

Each system is set for speed: nats-server and redis-server without limits on what waits, NATS read by callbacks, zenoh
blocking instead of dropping, redis-py with pipelines, ZeroMQ without a copy of 64 KiB and, for many requests at a
time, by DEALER. Blocking sockets are not paced. The peers come with `make bench`, and so does `nats-server`;
`redis-server` is a Debian package.

`make bench ARGS="--case NAME --document docs/explanation/benchmarks.md"` measures one case anew.
`--busy` measures on a busy machine, which the case then says. [`iris
bench`](../reference/command.md#iris-bench) measures Iris alone, on your network;
[`python -m benchmarks.turns TREE`](architecture.md#beside-an-earlier-checkout) compares checkouts.
"""

TAIL = """\
## The JSON

`make bench ARGS="--json FILE"` writes one object: [benchmarks/report.py](../../benchmarks/report.py).
`iris bench --json` writes the same without `ratios`, `processor` and `absent`. Its `run` has `date`, `seconds`,
`rounds`, `members`, the receivers that were found, and `clock_error`: between two machines, the microseconds by which
ages may be wrong. Beside that: the sender's rate (`publish-100/sent`), percentiles to 99.999, and requests by a
schedule (`open`), corrected for coordinated omission.
"""

_END = "<!-- end of the cases -->"
_COMMON = re.compile(r"^<!-- common -->\n(.*?)(?=^<!-- )", re.MULTILINE | re.DOTALL)
"""What is the same for all cases of a page: date, machine, versions, and systems that were not measured."""
_BLOCK = re.compile(r"^<!-- case: (\S+) -->\n(.*?)(?=^<!-- )", re.MULTILINE | re.DOTALL)


def write_table(report: Report, path: Path, plots: Sequence[Path] = ()) -> None:
    """Write the report as Markdown to ``path``, with the ``plots`` of its cases.

    Cases of the page that were not measured stay as they are, and so does what the page has in common: a case that
    was measured otherwise says so itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures = {plot.stem.removeprefix("bench-"): plot.relative_to(path.parent).as_posix() for plot in plots}
    page = path.read_text() if path.exists() else ""
    blocks = dict(_BLOCK.findall(page))
    if blocks.keys() <= {case.name for case in report.cases}:
        common = "\n".join(_common(report)) + "\n"
    else:
        common = found[1] if (found := _COMMON.search(page)) else ""
    known = frozenset(re.split(r"; |\n", common))
    for case in report.cases:
        if lines := list(_block(report, case, pictures.get(case.name), known)):
            blocks[case.name] = "\n".join(lines) + "\n"
    order = dict.fromkeys((*(case.name for case in CASES), *(case.name for case in report.cases)))
    cases = "".join(f"<!-- case: {name} -->\n{blocks[name]}" for name in order if name in blocks)
    path.write_text(f"{HEAD}\n<!-- common -->\n{common}{cases}{_END}\n\n{TAIL}")


def _common(report: Report) -> Iterator[str]:
    systems = [system for system in report.systems if any(_measured(report, case, [system]) for case in report.cases)]
    yield f"\n{'; '.join(_conditions(report, systems))}\n"
    if any(system.lacks for system in systems):
        yield "| system | without |\n|---|---|"
        yield from (f"| {system.name} | {', '.join(system.lacks)} |" for system in systems if system.lacks)
        yield ""
    yield from _absent(absence for absence in report.absent if absence.case is None)


def _conditions(report: Report, systems: Iterable[System]) -> Iterator[str]:
    """Yield how it was measured: the run, the machine, and the version of each system."""
    run, here = report.run, machine()
    yield (
        f"Measured on {run.date}, {run.rounds} rounds of {run.seconds:g} s{' (quick)' if run.quick else ''}, "
        f"at a load of {run.load:.1f} before"
    )
    yield f"{here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, {here['system']}, Python {here['python']}"
    for system in systems:
        yield f"{system.name} {system.version()}{f' with {server}' if (server := system.server()) else ''}"


def _absent(absences: Iterable[Absence], known: frozenset[str] = frozenset()) -> Iterator[str]:
    systems: dict[tuple[str | None, str], list[str]] = {}
    for absence in absences:
        systems.setdefault((absence.case, absence.reason), []).append(absence.system)
    lines = [f"- {', '.join(names)}: {reason}" for (_, reason), names in systems.items()]
    if lines := [line for line in lines if line not in known]:
        yield from ("Not measured:\n", *lines, "")


def _measured(report: Report, case: Case, systems: Iterable[System]) -> list[System]:
    """Return those of the systems of which a case has a figure."""
    return [system for system in systems if any(_rows(report, case, figure, [system]) for figure in case.figures)]


def _block(report: Report, case: Case, picture: str | None, known: frozenset[str]) -> Iterator[str]:
    """Yield the lines of a case, without what is ``known``; none if nothing of it was measured."""
    measured = _measured(report, case, report.systems)
    if not measured:
        return
    yield f"\n## {case.title}\n"
    if picture is not None:
        yield f"![The medians]({picture})\n"
    yield from _run(report, case, (line for line in _conditions(report, measured) if line not in known))
    if len(measured) == 1 and len(case.figures) > 1:
        yield from _figures(report, case, measured[0])
    else:
        for number, figure in enumerate(case.figures):
            if len(case.figures) > 1:
                yield f"### {figure.name}\n"
            yield from _table(report, case, figure, costs=number == 0)
    for _, system, lost in (loss for loss in report.losses() if loss[0] is case):
        yield f"{system.name} lost {lost:,} messages in all rounds together.\n"
    absent = (absence for absence in report.absent if absence.case in (None, case.name))
    yield from _absent(absent, known)


def _run(report: Report, case: Case, conditions: Iterable[str]) -> Iterator[str]:
    mean, most = report.others_during(case.name)
    if mean > LIMIT:
        yield f"**On a busy machine**: other programs took {mean * 100:.0f} % of the processors.\n"
    shares = f"Others took {mean * 100:.0f} %, at most {most * 100:.0f} %."
    yield " ".join((shares, *(f"{condition}." for condition in conditions))) + "\n"


def _rows(report: Report, case: Case, figure: Figure, systems: Iterable[System]) -> list[Row]:
    return [row for system in systems if (row := report.row(case, figure, system.name)) is not None]


def _figures(report: Report, case: Case, system: System) -> Iterator[str]:
    """Yield one table of all figures of a case that one system has."""
    yield f"| figure | {system.name} |"
    yield "|---|---|"
    for figure in case.figures:
        yield from (f"| {figure.name} | {spread(row)} {figure.unit} |" for row in _rows(report, case, figure, [system]))
    yield ""


def _table(report: Report, case: Case, figure: Figure, *, costs: bool) -> Iterator[str]:
    """Yield the table of one figure; the first of a case says what each system costs."""
    rows = _rows(report, case, figure, report.systems)
    if not rows:
        return
    ours = {row.system: row for row in rows if row.system in (OURS, OURS_IN_ASYNCIO)}
    processor = {row.system: added_up(report.processor(case, row.system)) for row in rows} if costs else {}
    heads = ["system", figure.unit, *(f"{name} /" for name in ours if len(rows) > 1)]
    heads += ["processor"] * any(processor.values())
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in ranked(rows, figure):
        cells = [f"**{row.system}**" if row.system in ours else row.system, spread(row)]
        if len(rows) > 1:
            cells += [
                f"{one.median / row.median:.2f}" if one is not row and row.median else "" for one in ours.values()
            ]
        if any(processor.values()):
            cells.append(processor[row.system])
        yield f"| {' | '.join(cells)} |"
    yield ""


def added_up(parts: Iterable[float | None]) -> str:
    """Return the parts of what a message takes of the processors, as ``1.2 + 0.9``."""
    return " + ".join(f"{part:.3g}" for part in parts if part is not None)


def ranked(rows: Iterable[Row], figure: Figure) -> list[Row]:
    """Return ``rows`` with the best first."""
    return sorted(rows, key=lambda row: row.median, reverse=figure.better == "higher")
