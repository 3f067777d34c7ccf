"""``python -m benchmarks.streams [--quick] [CASE ...]``: the figures of docs/explanation/measured/streams.md.

Each line is printed as soon as it is known.  Without a name every case runs; ``--quick`` takes a minute in all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from benchmarks.streams import beside, cuts, fanout, joiner, memory, relays, sites, topics, transfer, tree

CASES: Final[dict[str, Callable[..., None]]] = {
    "beside": beside.conduct,
    "cuts": cuts.conduct,
    "fifo": fanout.conduct_fifo,
    "joiner": joiner.conduct,
    "memory": memory.conduct,
    "relays": relays.conduct,
    "sites": sites.conduct,
    "stopped": fanout.conduct_stopped,
    "topics": topics.conduct,
    "transfer": transfer.conduct,
    "tree": tree.conduct,
}


def main() -> None:
    """Run the cases that are named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--quick", action="store_true", help="a small version of each")
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    for name in given.cases or CASES:
        CASES[name](quick=given.quick)


if __name__ == "__main__":
    main()
