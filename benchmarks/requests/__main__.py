"""``python -m benchmarks.requests CASE``: the figures of docs/explanation/measured/requests.md."""

from __future__ import annotations

import argparse
import sys

from benchmarks.requests import broadcast, keys, kill, overload, overload_processes, restarts


def main() -> None:
    """Run the case that is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.requests", description=__doc__)
    cases = parser.add_subparsers(dest="case", required=True)
    killing = cases.add_parser("kill", help="kill -9 of three of ten members under load")
    killing.add_argument("--requests", type=int, default=100_000)
    loading = cases.add_parser("overload", help="up to ten times the load that can be served, in virtual time")
    loading.add_argument("--seconds", type=float, default=10.0)
    real = cases.add_parser("overload-processes", help="the same between processes, in real time")
    real.add_argument("--seconds", type=float, default=15.0)
    cases.add_parser("broadcast", help="what a broadcast costs its sender, by the number of members")
    rolling = cases.add_parser("restarts", help="members that are restarted by SIGTERM, in turn, under load")
    rolling.add_argument("--members", type=int, default=4)
    rolling.add_argument("--restarts", type=int, default=10, help="of each member")
    keyed = cases.add_parser("keys", help="requests with an idempotency key, while members and the bridge are killed")
    keyed.add_argument("--requests", type=int, default=10_000)
    keyed.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    match given.case:
        case "kill":
            kept = kill.conduct(given.requests)
        case "overload":
            kept = overload.conduct(seconds=given.seconds)
        case "overload-processes":
            kept = overload_processes.conduct(seconds=given.seconds)
        case "broadcast":
            kept = broadcast.conduct()
        case "restarts":
            kept = restarts.conduct(members=given.members, restarts=given.restarts)
        case "keys":
            kept = keys.conduct(given.requests, seed=given.seed)
        case _:
            raise AssertionError(given.case)
    sys.exit(not kept)


if __name__ == "__main__":
    main()
