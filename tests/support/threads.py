"""Nodes of threads from inside: their portals, and what stands in line in their own threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import iris.sync
from iris.patterns.pubsub.publish import Publisher
from iris.sync.crossing import Handle
from iris.sync.portal import Portal
from iris.testing import Inspection, inspect

T = TypeVar("T")


def portal_of(handle: Handle[Any]) -> Portal:
    """Return the way into the thread of a node."""
    return handle._portal


def inner_of(handle: Handle[T]) -> T:
    """Return the object of trio behind one for threads."""
    return handle._inner


def publisher_of(node: iris.sync.Node) -> Publisher:
    """Return the publisher of a node; for use in its own thread."""
    return inner_of(node)._publishing


def inspected(node: iris.sync.Node) -> Inspection:
    """Return a snapshot of what a node knows and keeps."""
    return portal_of(node).call_plain(partial(inspect, inner_of(node)))


def is_held(node: iris.sync.Node, topic: str) -> bool:
    """Return whether a subscriber to a topic has asked for a pause."""
    return portal_of(node).call_plain(lambda: bool(publisher_of(node).resolve(topic).waits_for(None)))


@contextmanager
def standing_still(node: iris.sync.Node) -> Iterator[threading.Event]:
    """Have the thread of a node do nothing in this block, or until the event is set."""
    stands, goes_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        goes_on.wait()

    portal_of(node).do(stand)
    try:
        assert stands.wait(30)
        yield goes_on
    finally:
        goes_on.set()
