"""``python -m benchmarks.bridge kills|moves|rates|latency|topics|first``: the figures of measured/spark.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial

from benchmarks.bridge.kills import choose_victims, run_kills
from benchmarks.bridge.moves import run_moves
from benchmarks.bridge.rates import opening, publishing, row


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bridge", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    kills = verbs.add_parser("kills", help="kill publisher, bridge, driver and executors; count what comes out")
    kills.add_argument("--count", type=int, default=200)
    kills.add_argument("--seed", type=int, default=0)
    kills.add_argument("--pause", type=float, default=4.0, help="mean seconds between two kills")
    kills.add_argument("--costly", type=int, help="of so many drivers and executors each, instead of a quarter")
    kills.add_argument("--rate", type=float, default=1000.0, help="events per second")
    moves = verbs.add_parser("moves", help="kill drivers and members while the bridge grows and one is renamed")
    moves.add_argument("--events", type=int, default=100_000)
    moves.add_argument("--kills", type=int, default=18)
    moves.add_argument("--seed", type=int, default=0)
    rates = verbs.add_parser("rates", help="events and rows per second, latency, memory")
    rates.add_argument("--events", type=int, default=300_000, help="in each round")
    rates.add_argument("--without-spark", action="store_true", help="only what needs no session")
    rates.add_argument("--java", default="", help="options of Spark's Java, as '-XX:TieredStopAtLevel=1'")
    latency = verbs.add_parser("latency", help="the way of one event through Spark, and what Spark alone takes for it")
    latency.add_argument("--default", action="store_true", help="a session without latency=True")
    latency.add_argument("--sink", action="store_true", help="only to our sink and a subscriber behind it")
    topics = verbs.add_parser("topics", help="10,000 topics beside one, and a query on a silent topic")
    topics.add_argument("--events", type=int, default=60_000, help="that are published in each round")
    topics.add_argument("--elsewhere", type=int, default=1_000_000, help="while a query waits for another topic")
    first = verbs.add_parser("first", help="spark-submit to a standalone cluster on a busy machine")
    first.add_argument("--tries", type=int, default=10)
    first.add_argument("--load", type=float, default=10.0, help="of the machine, by processes that count")
    given = parser.parse_args()
    if given.verb == "kills":
        sys.exit(_kill(given))
    if given.verb == "moves":
        moved = run_moves(given.events, given.kills, seed=given.seed, say=partial(print, file=sys.stderr, flush=True))
        print(moved)
        sys.exit(bool(moved.lost or moved.doubled))
    if given.verb == "latency":
        from benchmarks.bridge.latency import main as measure_latency

        measure_latency(latency=not given.default, sink=given.sink)
        return
    row("what", "figure", "target")
    row("---", "---", "---")
    row("load of the machine before", _load())
    if given.verb == "topics":
        from benchmarks.bridge.topics import measure_topics

        measure_topics(given.events, given.elsewhere)
        row("load of the machine behind", _load())
        return
    if given.verb == "first":
        from benchmarks.bridge.first_tries import first_tries

        sys.exit(first_tries(given.tries, given.load) < given.tries)
    publishing(given.events)
    opening()
    if not given.without_spark:
        from benchmarks.bridge.spark_rates import measure_spark

        measure_spark(given.events, given.java)
        for kind in ([], ["--default"]):  # each a Java of its own
            subprocess.run([sys.executable, "-m", "benchmarks.bridge", "latency", *kind], check=True)
    row("load of the machine behind", _load())


def _load() -> str:
    """Say how busy the machine is: what else runs takes its share of every figure."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def _kill(given: argparse.Namespace) -> bool:
    outcome = run_kills(
        choose_victims(given.count, given.seed, given.costly),
        seed=given.seed,
        pause=given.pause,
        rate=given.rate,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(outcome)
    return not outcome.good


if __name__ == "__main__":
    main()
