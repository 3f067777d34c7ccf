"""What tests of the HTTP door start with."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.doors import Run, open_place, runner


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a program with a door, of which no task may be left when it is closed."""
    return runner(tmp_path, monkeypatch, open_place, within=100)


@pytest.fixture
def silent_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that nothing is logged as an error: what a client does wrong is told to that client, and counted."""
    with caplog.at_level(logging.DEBUG):
        yield
    records = caplog.get_records("call")
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []
