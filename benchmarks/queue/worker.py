"""A worker as a process of its own: it writes down which jobs it begins and ends, also when it is killed.

Each line of its record is a letter, the job's number and the wall clock in seconds: B begun, and behind it the age of
the job, D done.
A line is one ``write``: what the kernel has of it outlives the process.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import trio

import iris


async def work(given: argparse.Namespace) -> None:
    """Take jobs until killed."""
    record = os.open(Path(given.record), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with (
        iris.open_node("workers") as node,
        node.queue(given.queue, lease=given.lease, attempts=given.attempts, backoff=given.backoff) as jobs,
        trio.open_nursery() as nursery,
    ):
        await node.wait_for("bridge", timeout=60)
        taken = jobs.take(given.limit)

        async def one() -> None:
            async for job in taken:
                number, kind, *_ = job.payload.split(b" ")
                os.write(record, b"B %s %.6f %.6f\n" % (number, now := time.time(), now - job.timestamp))
                async with job:
                    if kind == b"poison":
                        raise ValueError("poison")
                    if given.work:
                        await trio.sleep(given.work)
                    os.write(record, b"D %s %.6f\n" % (number, time.time()))

        for _ in range(given.concurrency):
            nursery.start_soon(one)
        print("ready", file=sys.stderr, flush=True)


def main() -> None:
    """Read the options, and work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", required=True)
    parser.add_argument("--queue", default="jobs")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--attempts", type=int, default=5)
    parser.add_argument("--backoff", type=float, default=0.1)
    parser.add_argument("--work", type=float, default=0.0, help="seconds that a job takes")
    import logging

    logging.disable(logging.ERROR)  # a traceback for each poison job
    trio.run(work, parser.parse_args())


if __name__ == "__main__":
    main()
