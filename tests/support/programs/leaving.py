"""A program of threads that is left with events in line for a subscriber who takes few at a time.

    python -m tests.support.programs.leaving EVENTS exit|interrupt|twice|error

``twice`` keeps the node's own thread from doing anything, so that even the second Ctrl-C finds the events in line.  It
says when it may be interrupted, and at the end what has become of the events, if its node can still tell.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from types import FrameType

import iris.sync
from iris.sync.node import _Event
from tests.support.threads import inner_of, inspected, is_held, portal_of, standing_still


def _interrupt(number: int, frame: FrameType | None) -> None:
    print("struck", file=sys.stderr, flush=True)
    signal.default_int_handler(number, frame)


def _post(node: iris.sync.Node, events: int) -> None:
    """Publish until the subscriber asks for a pause, and then what has to stand in line."""
    begun = 0
    while not is_held(node, "a.b"):
        if begun < 3:
            node.publish("a.b", b"begin")
            begun += bool(inspected(node).subscribers)
        time.sleep(0.01)
    with standing_still(node):  # else the second one would wait for the first
        for number in range(events):
            node.publish("a.b", b"%d" % number)
    print("posted", file=sys.stderr, flush=True)


def main() -> None:
    """Open a node, post, and leave it."""
    events, how = int(sys.argv[1]), sys.argv[2]
    logging.basicConfig(format="%(levelname)s %(message)s")
    signal.signal(signal.SIGINT, _interrupt)
    node: iris.sync.Node | None = None
    try:
        with iris.sync.open_node("writer") as node:
            if how == "twice":
                portal_of(node).do(threading.Event().wait)
                for number in range(events):
                    portal_of(node).post(_Event(inner_of(node), "a.b", b"%d" % number))
            else:
                _post(node, events)
            if how == "exit":
                sys.exit(3)
            if how == "error":
                raise LookupError("the body's own")
            print("may be interrupted", file=sys.stderr, flush=True)
            while True:
                time.sleep(1)
    finally:
        if node is not None and how != "twice":
            print(json.dumps({"lost": node.statistics().events.lost}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
