"""Handlers that block: callers in another thread, and what both ends have logged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

import iris
import iris.sync
from iris.node.blocked import BlockedStatistics

BLOCKS: Final = 0.8
"""Seconds for which a handler blocks: the watch speaks after 0.5 to 0.75."""

PATIENCE: Final = 30.0


def stand(seconds: float = BLOCKS) -> None:
    """Block the event loop that calls this."""
    time.sleep(seconds)


STANDS: Final = f"{__name__.rpartition('.')[2]}.py:{stand.__code__.co_firstlineno + 2}"
"""The line that blocks, as logs show it."""


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    """Return the records whose message has a text in it."""
    return [record for record in caplog.records if text in record.getMessage()]


def ask(caller: iris.sync.Node, operation: str, done: Callable[[], object]) -> None:
    """Ask the operation in another thread, once it is served, and then call ``done``."""

    def asked() -> None:
        caller.wait_for("prices", 1)
        try:
            caller.request("prices", None, operation=operation, timeout=PATIENCE)
        finally:
            done()

    threading.Thread(target=asked).start()


def check(caplog: pytest.LogCaptureFixture, operation: str, counted: BlockedStatistics) -> None:
    """Check what both ends have logged, and what is counted, about a handler that calls ``stand``."""
    (blocked,) = lines(caplog, "blocks its node")
    assert (vars(blocked)["cluster"], vars(blocked)["operation"]) == ("prices", operation)
    assert STANDS in blocked.getMessage()
    assert f"in {operation}" in str(blocked.stack_info)
    assert "it waits" in blocked.getMessage()
    (told,) = lines(caplog, "is blocked, not dead")
    assert STANDS in told.getMessage()
    assert told.levelno == logging.WARNING, "the caller waits for this member"
    assert vars(told)["operation"] == operation
    (over,) = lines(caplog, "blocked its node for")
    assert blocked.created <= told.created < over.created, "told while it was blocked"
    assert (counted.cluster, counted.operation, counted.count) == ("prices", operation, 1)
    assert BLOCKS - 0.3 < counted.seconds < PATIENCE
    assert STANDS in counted.place
