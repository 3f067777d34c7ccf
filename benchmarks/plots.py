"""The report as pictures: rates as bars, latencies by percentile on a logarithmic axis."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# matplotlib has types, but not for its keyword arguments.

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import OURS, Report
from iris.bench.cases import AMONG, MEMBERS, P50, Case

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
OURS_COLOUR = "#6a3fb5"
PEER_COLOUR = "#b9b9c3"


def draw_plots(report: Report, directory: Path) -> list[Path]:
    """Draw every case that was measured; return the files, in the order of the cases.

    Nothing is drawn, and the list is empty, where matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "iris"  # the same figures make the same file
    directory.mkdir(parents=True, exist_ok=True)
    return [_draw(report, case, directory) for case in report.cases if _measured(report, case)]


def _measured(report: Report, case: Case) -> bool:
    return any(name == case.name for name, _, _ in report.figures)


def _draw(report: Report, case: Case, directory: Path) -> Path:
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(7, 3.2), layout="constrained")
    axes = picture.subplots()
    if P50 in case.figures:
        _percentile_lines(report, case, axes)
    elif case.kind == "members":
        _growth(report, case, axes)
    else:
        _bars(report, case, axes)
    axes.set_title(case.title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    file = directory / f"bench-{case.name}.svg"
    picture.savefig(file, metadata={"Date": None})
    return file


def _bars(report: Report, case: Case, axes: Axes) -> None:
    figure = case.figures[0]
    rows = [row for system in report.systems if (row := report.row(case, figure, system.name)) is not None]
    rows.sort(key=lambda row: row.median)
    medians = [row.median for row in rows]
    spread = [[row.median - min(row.rounds) for row in rows], [max(row.rounds) - row.median for row in rows]]
    colours = [OURS_COLOUR if row.system == OURS else PEER_COLOUR for row in rows]
    axes.barh([row.system for row in rows], medians, xerr=spread, color=colours, ecolor="#444450", capsize=2)
    axes.set_xlabel(f"{figure.unit} (median, least to greatest)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _growth(report: Report, case: Case, axes: Axes) -> None:
    """Draw the rate over the members; a level line is what one hopes for."""
    from matplotlib.ticker import NullLocator

    for system in report.systems:
        rows = [report.row(case, figure, system.name) for figure in AMONG]
        rates = [row.median for row in rows if row is not None]
        if len(rates) == len(MEMBERS):
            axes.plot(MEMBERS, rates, marker="o", markersize=4, color=OURS_COLOUR, label=system.name)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(MEMBERS, [f"{members:,}" for members in MEMBERS])
    axes.set_xlabel("members")
    axes.set_ylim(bottom=0)
    axes.set_ylabel(AMONG[0].unit)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _percentile_lines(report: Report, case: Case, axes: Axes) -> None:
    """Draw one line per system, over 1 / (1 - percentile) as HdrHistogram does: each nine more gets the same room."""
    from matplotlib.ticker import NullLocator

    places = [1 / (1 - share) for share in PERCENTILES.values()]
    for system, values in _curves(report, case):
        ours: dict[str, Any] = (
            {"color": OURS_COLOUR, "linewidth": 2.5, "zorder": 3} if system == OURS else {"linewidth": 1}
        )
        axes.plot(places, values, marker="o", markersize=3, label=system, **ours)
    axes.set_xscale("log")
    axes.set_xticks(places, list(PERCENTILES))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yscale("log")
    axes.set_ylabel("us")
    axes.grid(visible=True, axis="y", which="both", linewidth=0.3)
    axes.legend(fontsize="small", frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def _curves(report: Report, case: Case) -> Iterator[tuple[str, list[float]]]:
    for system in report.systems:
        rounds = [report.figures.get((case.name, name, system.name)) for name in PERCENTILES]
        if all(rounds):
            yield system.name, [statistics.median(values) for values in rounds if values]
