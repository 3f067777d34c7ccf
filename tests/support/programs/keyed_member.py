"""A member that serves requests with an idempotency key, as a process of its own that may be killed at any time.

Its effect is an event of its outbox, and a line in a file: a letter for the beginning or the end of the handler, and
the number of the request.  A line is one ``write``, which outlives the process.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import trio

import iris


async def serve(given: argparse.Namespace) -> None:
    """Serve until killed."""
    record = os.open(Path(given.record), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    service = iris.Service("bank", outcomes=iris.Outcomes(rerun=given.rerun))

    @service.request
    async def pay(request: iris.Request) -> int:
        number: int = request.payload
        os.write(record, b"B %d\n" % number)
        assert request.outbox is not None
        request.outbox.publish("ledger", number)
        await trio.sleep(given.work)
        os.write(record, b"E %d\n" % number)
        return number * 2

    async with iris.open_node("bank") as node:
        await node.wait_for("bridge", timeout=60)
        async with node.join("bank", service):
            print("ready", file=sys.stderr, flush=True)
            await trio.sleep_forever()


def main() -> None:
    """Read the options, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", required=True)
    parser.add_argument("--work", type=float, default=0.005, help="seconds that a request takes")
    parser.add_argument("--rerun", action="store_true")
    trio.run(serve, parser.parse_args())


if __name__ == "__main__":
    main()
