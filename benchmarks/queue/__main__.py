"""``python -m benchmarks.queue [CASE...]``: what work queues have to show, and the figures beside JetStream."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from benchmarks.queue.cases import Finding, expiry, kills, poison, shares, slow
from benchmarks.queue.failovers import failovers
from benchmarks.queue.rates import done, rates

CASES = ("kills", "failovers", "shares", "slow", "poison", "expiry", "done", "rates")


def main() -> None:
    """Run cases, and print a row for each; the exit status is 1 if one is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all if none is named")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="of kills; the other cases have fewer")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"there is no case {min(unknown)}: use {', '.join(CASES)}")
    some = min(given.jobs, 20_000)
    ways: dict[str, Callable[[], Finding | list[Finding]]] = {
        "kills": lambda: kills(given.jobs, pause=given.pause, seed=given.seed),
        "failovers": lambda: failovers(some, turns=10),
        "shares": lambda: shares(some),
        "slow": lambda: slow(20.0),
        "poison": lambda: poison(min(some, 5_000)),
        "expiry": lambda: expiry(min(some, 2_000)),
        "done": lambda: done(min(given.jobs, 50_000)),
        "rates": lambda: rates(min(some, 10_000)),
    }
    good = True
    for name in given.cases or CASES:
        came = ways[name]()
        for finding in came if isinstance(came, list) else [came]:
            good = good and finding.good
            verdict = "as it should be" if finding.good else "NOT AS IT SHOULD BE"
            print(f"{finding.case}: {finding.figures}: {verdict} (load {os.getloadavg()[0]:.1f})", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
