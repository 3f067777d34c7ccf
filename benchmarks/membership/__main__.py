"""``python -m benchmarks.membership``: the figures of docs/explanation/reliability.md that come from simulation.

Each line is printed as soon as it is known.  ``--quick`` takes half a minute; the soak for false deaths and what
takes gigabytes or many minutes are asked for by name.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

from benchmarks.membership import balancing, scenarios
from benchmarks.membership.balancing import Shares
from benchmarks.membership.malice import malice
from benchmarks.membership.overlays import Drawn, Fingers, Hubs, Nearest, Overlay, Rings
from benchmarks.membership.realm import Realm
from benchmarks.membership.roots import announcing
from benchmarks.membership.scenarios import Death, Rate


def _say(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def _heading(title: str, *columns: str) -> None:
    print(f"\n{title}\n", flush=True)
    _say(*columns)
    _say(*("---" for _ in columns))


def _span(values: Sequence[float], *, unit: str = "s") -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f} {unit}"


def _percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _deaths(label: str, deaths: list[Death]) -> None:
    _say(
        label,
        _span([death.routed_out_everywhere for death in deaths]),
        "-" if deaths[0].last_request != deaths[0].last_request else _span([death.last_request for death in deaths]),
        _span([death.dead_first for death in deaths]),
        _span([death.dead_everywhere for death in deaths]),
        str(sum(death.false_deaths for death in deaths)),
    )


def silent(quick: bool) -> None:
    """A host vanishes."""
    _heading(
        "Silent death (median / worst of the runs)",
        "members, loss, runs",
        "routed out everywhere",
        "last request to it",
        "dead at the first",
        "dead everywhere",
        "false deaths",
    )
    cases = [(100, 0.0, 20, 0), (100, 0.0, 20, 10), (100, 0.05, 20, 10), (1000, 0.0, 5, 0), (1000, 0.0, 5, 10)]
    for size, loss, runs, callers in cases[:3] if quick else cases:
        seeds = range(5 if quick else runs)
        label = f"{size}, {loss:.0%}, {len(seeds)}, " + (f"{callers} callers" if callers else "nobody calls it")
        _deaths(label, [scenarios.silent_death(size, seed, loss=loss, callers=callers) for seed in seeds])


def killed(quick: bool) -> None:
    """A process is killed."""
    _heading(
        "Killed process (median / worst of the runs)",
        "members, linked to it, runs",
        "routed out everywhere",
        "last request to it",
        "dead at the first",
        "dead everywhere",
        "false deaths",
    )
    for size, linked, runs in ((100, 1.0, 20), (100, 0.1, 20), (1000, 1.0, 3), (1000, 0.05, 5))[: 2 if quick else 4]:
        seeds = range(5 if quick else runs)
        label = f"{size}, {linked:.0%}, {len(seeds)}"
        _deaths(label, [scenarios.killed(size, seed, linked=linked) for seed in seeds])


def arrivals(quick: bool) -> None:
    """Nodes join and leave."""
    _heading("Join and leave seen by all (p50 / p99 / worst)", "members, events", "join", "leave")
    for size, count in ((100, 100), (1000, 20))[: 1 if quick else 2]:
        seen = scenarios.arrivals(size, 1, count=10 if quick else count)
        cells = [
            f"{_percentile(v, 0.5):.2f} / {_percentile(v, 0.99):.2f} / {max(v):.2f} s"
            for v in (seen.joins, seen.leaves)
        ]
        _say(f"{size}, {len(seen.joins)}", *cells)


def steady(quick: bool) -> None:
    """Nothing happens."""
    _heading(
        "Steady state", "members, loss", "messages per second and node", "suspected (counted at each member)", "deaths"
    )
    cases = [(10, 0.0), (100, 0.0), (100, 0.05), (1000, 0.0), (1000, 0.05), (10_000, 0.0)]
    for size, loss in cases[:3] if quick else cases:
        rate = scenarios.steady(size, 1, seconds=10.0 if size > 1000 else 60.0, loss=loss)
        _say(f"{size}, {loss:.0%}", f"{rate.messages:.2f}", str(rate.suspected), str(rate.deaths))


def partitions(quick: bool) -> None:
    """The network falls in two and comes together again."""
    cases = [(100, 0.5, 60.0, 10), (100, 0.1, 60.0, 10), (100, 0.5, 3600.0, 1)]
    _partitions(cases[:2] if quick else cases, quick)


def large_partitions(quick: bool) -> None:
    """The same with a thousand members; takes ten minutes."""
    size = 200 if quick else 1000
    _partitions([(size, 0.5, 60.0, 1), (size, 0.5, 300.0 if quick else 3600.0, 1)], quick)


def _partitions(cases: Sequence[tuple[int, float, float, int]], quick: bool) -> None:
    _heading(
        "Partition (median / worst)",
        "members, smaller side, length, runs",
        "full view after its end",
        "lost within a side",
    )
    for size, minority, seconds, runs in cases:
        seeds = range(2 if quick else runs)
        healed = [scenarios.partition(size, seed, minority=minority, seconds=seconds) for seed in seeds]
        _say(
            f"{size}, {minority:.0%}, {seconds:.0f} s, {len(seeds)}",
            _span([healing.full_view for healing in healed]),
            str(sum(healing.lost_within for healing in healed)),
        )


def stalls(quick: bool) -> None:
    """Members stand still for up to 10 s, again and again."""
    _heading(
        "Stalled members",
        "members, stalled, time",
        "deaths of healthy ones",
        "deaths of stalled ones",
        "full view after",
    )
    for size, stalled in ((30, 5), (100, 10), (100, 30))[: 1 if quick else 3]:
        seconds = 60.0 if quick else 600.0
        seen = scenarios.stalls(size, 1, stalled=stalled, seconds=seconds)
        _say(
            f"{size}, {stalled}, {seconds:.0f} s",
            str(seen.healthy_deaths),
            str(seen.stalled_deaths),
            f"{seen.full_view:.2f} s",
        )


def malicious(quick: bool) -> None:
    """One member does all it can against another."""
    _heading("One malicious member", "members, time", "deaths", "routes closed", "refutations", "forgeries recognized")
    for size in (3, 10, 30)[: 2 if quick else 3]:
        seen = malice(size, 1, seconds=30.0 if quick else 120.0)
        cells = (seen.deaths, seen.closed_routes, seen.refutations, seen.rejected)
        _say(f"{size}, {30 if quick else 120} s", *map(str, cells))


def one_way(quick: bool) -> None:
    """Nothing from one member reaches one other."""
    _heading("One-way drop between two members", "members, time", "deaths", "members that still give it work")
    for size in (10, 100)[: 1 if quick else 2]:
        deaths, giving = scenarios.one_way(size, 1)
        _say(f"{size}, 120 s", str(deaths), f"{giving} of {size - 1}")


def balance(quick: bool) -> None:
    """Ten members of which one is ten times slower."""
    _heading(
        "Choosing a member: ten, one of them ten times slower; four handlers each, 10 ms of work",
        "load, callers",
        "how",
        "p50",
        "p99",
        "p99 without the slow one",
        "share of capacity: slow one",
        "others",
    )
    seconds = 20.0 if quick else 60.0
    cases: list[tuple[str, int, Callable[..., Shares]]] = [
        ("30 %", 1, partial(balancing.offered, load=0.3)),
        ("70 %", 1, partial(balancing.offered, load=0.7)),
        ("70 %", 10, partial(balancing.offered, load=0.7)),
        ("90 %", 1, partial(balancing.offered, load=0.9)),
        ("90 %", 10, partial(balancing.offered, load=0.9)),
        ("200 outstanding", 1, partial(balancing.saturated, outstanding=200)),
        ("200 outstanding", 10, partial(balancing.saturated, outstanding=200)),
    ]
    for load, callers, case in cases:
        for in_turn in (False, True):
            seen = case(1, callers=callers, seconds=seconds, in_turn=in_turn)
            without = case(1, callers=callers, seconds=seconds, in_turn=in_turn, one_slow=False)
            _say(
                f"{load}, {callers}",
                "in turn" if in_turn else "Iris",
                f"{seen.p50 * 1e3:.0f} ms",
                f"{seen.p99 * 1e3:.0f} ms",
                f"{without.p99 * 1e3:.0f} ms",
                f"{seen.slow_share:.2f}",
                f"{seen.least_share:.2f} - {seen.greatest_share:.2f}",
            )


_OVERLAYS: Final[dict[str, Callable[[], Overlay | None]]] = {
    "everybody": lambda: None,
    "three hubs": lambda: Hubs(3),
    "six rings": lambda: Rings(6),
    "fingers": Fingers,
    "nearest six": lambda: Nearest(6),
    "drawn, four": lambda: Drawn(4),
    "drawn, six": lambda: Drawn(6),
    "drawn, eight": lambda: Drawn(8),
}


def overlays(quick: bool) -> None:
    """Each node keeps a link to few; takes half an hour."""
    for size in (100, 1000)[: 1 if quick else 2]:
        runs = 3 if quick or size > 100 else 10
        _heading(
            f"Sparse links, {size} members",
            "a node keeps links to",
            "links: mean / most",
            "links that a join makes",
            "join seen by all",
            "silent: dead everywhere",
            "false deaths",
            "links that come and go, per minute and node",
        )
        for name, make in _OVERLAYS.items():
            links = Realm(size, 1, overlay=make()).links
            counts = [size - 1] if links is None else links.counts()
            seen = scenarios.arrivals(size, 1, count=5, overlay=make())
            rate = scenarios.steady(size, 1, overlay=make())
            deaths = [scenarios.silent_death(size, seed, callers=0, overlay=make()) for seed in range(runs)]
            _say(
                name,
                f"{statistics.mean(counts):.0f} / {max(counts)}",
                f"{statistics.mean(seen.handshakes):.0f}",
                f"{max(seen.joins):.2f} s",
                _span([death.dead_everywhere for death in deaths]),
                str(sum(death.false_deaths for death in deaths) + rate.deaths),
                f"{rate.handshakes:.1f}",
            )
    _heading(
        "Sparse links, 40 members", "a node keeps links to", "20 vanish: all known dead", "full view after 30 s apart"
    )
    for name, make in _OVERLAYS.items():
        seeds = range(2 if quick else 5)
        vanished = [scenarios.decimated(40, seed, overlay=make()) for seed in seeds]
        healed = [scenarios.partition(40, seed, seconds=30.0, overlay=make()).full_view for seed in seeds]
        _say(name, _span(vanished), _span(healed))


def roots(quick: bool) -> None:
    """Publishers announce roots; takes two minutes."""
    _heading(
        "Announced roots: 10 of them, one for each that publishes or subscribes",
        "members, publishers, subscribers",
        "links: median / most",
        "messages of an announcement",
        "answered after",
        "do not know of each other",
    )
    for size in (100, 1000)[: 1 if quick else 2]:
        seen = announcing(size, size // 10, 10, 3 * size // 10, 1)
        _say(
            f"{size}, {size // 10}, {3 * size // 10}",
            f"{statistics.median(seen.links):.0f} / {max(seen.links)}",
            f"{statistics.median(seen.messages):.0f}",
            _span(seen.seconds),
            str(seen.missed),
        )


def scale(quick: bool) -> None:
    """Ten thousand machines; takes 6 GB and some minutes."""
    size = 2000 if quick else 10_000
    columns = ("messages per second and node", "join seen by all", "leave seen by all", "dead everywhere")
    _heading("Scale", "members", *columns)
    # Millions of objects that live as long as their realm: the collector would look at them again and again.
    gc.disable()
    rate = scenarios.steady(size, 1, seconds=10.0)
    gc.collect()
    seen = scenarios.arrivals(size, 1, count=1)
    gc.collect()
    death = scenarios.silent_death(size, 1)
    gc.enable()
    _say(
        f"{size}",
        f"{rate.messages:.2f}",
        f"{seen.joins[0]:.2f} s",
        f"{seen.leaves[0]:.2f} s",
        f"{death.dead_everywhere:.2f} s",
    )


def soak(hours: float, size: int, loss: float, jobs: int, seed: int) -> None:
    """Look for false deaths over many node-hours, in runs of 50 with a seed each, from ``seed`` on."""
    _heading(
        "False deaths",
        "members, loss, seeds",
        "node-hours",
        "suspected (counted at each member)",
        "false deaths",
        "messages",
        "took",
    )
    since = time.monotonic()
    parts = max(jobs, round(hours / (size * 0.5)))
    run = partial(scenarios.steady, size, seconds=hours / parts / size * 3600, loss=loss)
    with ProcessPoolExecutor(jobs) as pool:
        rates: list[Rate] = []
        for rate in pool.map(run, range(seed, seed + parts)):
            rates.append(rate)
            done, deaths = sum(r.node_hours for r in rates), sum(r.deaths for r in rates)
            print(f"{done:.0f} node-hours, {deaths} false deaths", end="\r", file=sys.stderr, flush=True)
    _say(
        f"{size}, {loss:.0%}, {seed} to {seed + parts - 1}",
        f"{sum(rate.node_hours for rate in rates):.0f}",
        str(sum(rate.suspected for rate in rates)),
        str(sum(rate.deaths for rate in rates)),
        f"{statistics.mean(rate.messages for rate in rates):.2f} /s/node",
        f"{time.monotonic() - since:.0f} s",
    )


SCENARIOS: Final = {
    "silent": silent,
    "killed": killed,
    "arrivals": arrivals,
    "steady": steady,
    "partitions": partitions,
    "stalls": stalls,
    "malicious": malicious,
    "one-way": one_way,
    "balance": balance,
}

LONG: Final = {"overlays": overlays, "roots": roots, "scale": scale, "large-partitions": large_partitions}
"""Run only when named."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the scenarios named, or all but the long ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.membership", description=__doc__)
    parser.add_argument(
        "scenario", nargs="*", help=f"{', '.join(SCENARIOS)}; {', '.join(LONG)}, soak; none: all but these"
    )
    parser.add_argument("--quick", action="store_true", help="fewer seeds and smaller realms")
    parser.add_argument("--hours", type=float, default=100.0, help="node-hours of the soak")
    parser.add_argument("--size", type=int, default=100, help="members in the soak")
    parser.add_argument("--loss", type=float, default=0.05, help="share of messages lost in the soak")
    parser.add_argument("--jobs", type=int, default=1, help="processes of the soak")
    parser.add_argument("--seed", type=int, default=0, help="first seed of the soak, so that several can share it")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.scenario) - {*SCENARIOS, *LONG, "soak"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    # A realm has millions of objects that live as long as it does, and no cycles: the collector looks more rarely.
    gc.set_threshold(200_000, 50, 100)
    for name in chosen.scenario or SCENARIOS:
        if name == "soak":
            soak(chosen.hours, chosen.size, chosen.loss, chosen.jobs, chosen.seed)
        else:
            (SCENARIOS | LONG)[name](chosen.quick)


if __name__ == "__main__":
    main()
