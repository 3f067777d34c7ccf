"""``python -m benchmarks.bridge VERB``: what a bridge keeps whatever dies, and its rates."""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks.bridge.copies import run_turns
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
    moves = verbs.add_parser("moves", help="kill drivers and members while one of them is renamed")
    moves.add_argument("--events", type=int, default=100_000)
    moves.add_argument("--kills", type=int, default=18)
    moves.add_argument("--seed", type=int, default=0)
    copies = verbs.add_parser("copies", help="kill the primary, promote its copy, refuse the former primary")
    copies.add_argument("--turns", type=int, default=100)
    copies.add_argument("--seed", type=int, default=0)
    copies.add_argument("--rate", type=float, default=1000.0, help="events per second")
    copies.add_argument("--spark", action="store_true", help="a query reads and writes all the time")
    copies.add_argument("--tier", action="store_true", help="the log goes to a tier")
    rates = verbs.add_parser("rates", help="events and rows per second, memory")
    rates.add_argument("--events", type=int, default=300_000, help="in each round")
    rates.add_argument("--without-spark", action="store_true", help="only what needs no session")
    rates.add_argument("--java", default="", help="options of Spark's Java, as '-XX:TieredStopAtLevel=1'")
    engines = verbs.add_parser("engines", help="its own log, one with copies and an election, and Kafka, in turns")
    engines.add_argument("--events", type=int, default=40_000, help="in each round")
    engines.add_argument("--rounds", type=int, default=5)
    engines.add_argument("--answers", type=int, default=100, help="events timed into Spark's rows; 0: no Spark")
    given = parser.parse_args()
    match given.verb:
        case "kills":
            victims = choose_victims(given.count, given.seed, given.costly)
            killed = run_kills(victims, seed=given.seed, pause=given.pause, rate=given.rate, say=_say)
            print(killed)
            sys.exit(not killed.good)
        case "moves":
            moved = run_moves(given.events, given.kills, seed=given.seed, say=_say)
            print(moved)
            sys.exit(bool(moved.lost or moved.doubled))
        case "copies":
            turns = run_turns(
                given.turns, seed=given.seed, rate=given.rate, spark=given.spark, tier=given.tier, say=_say
            )
            print(turns)
            sys.exit(not turns.good)
        case "engines":
            from benchmarks.bridge.engines import measure_engines

            row("what", "figure", "beside")
            row("---", "---", "---")
            measure_engines(given.events, given.answers, given.rounds)
        case _:
            _measure(given)


def _measure(given: argparse.Namespace) -> None:
    row("what", "figure", "target")
    row("---", "---", "---")
    row("load of the machine before", _load())
    publishing(given.events)
    opening()
    if not given.without_spark:
        from benchmarks.bridge.spark_rates import measure_spark

        measure_spark(given.events, given.java)
    row("load of the machine behind", _load())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _load() -> str:
    """Say how busy the machine is: what else runs takes its share of every figure."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
