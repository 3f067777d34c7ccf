"""A worker as a process of its own: it writes down which jobs it begins and ends, also when it is killed.

Each line of its record is a letter, B for begun or D for done, and the job's number.  A line is one ``write``: what the
kernel has of it outlives the process.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import trio

import iris


async def work(given: argparse.Namespace) -> None:
    """Take jobs until killed."""
    record = os.open(Path(given.record), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with (
        iris.open_node("workers") as node,
        node.bridge().queue("jobs") as jobs,
        trio.open_nursery() as nursery,
    ):
        await node.wait_for("bridge", timeout=60)
        taken = jobs.receive(given.limit)

        async def one() -> None:
            async for job in taken:
                os.write(record, b"B %s\n" % job.payload)
                async with job:
                    await trio.sleep(given.work)
                    os.write(record, b"D %s\n" % job.payload)

        for _ in range(given.concurrency):
            nursery.start_soon(one)
        print("ready", file=sys.stderr, flush=True)


def main() -> None:
    """Read the options, and work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--work", type=float, required=True, help="seconds that a job takes")
    trio.run(work, parser.parse_args())


if __name__ == "__main__":
    main()
