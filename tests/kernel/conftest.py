"""Fixtures shared by the tests of the transports."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL to listen at, of the scheme that the test is parametrized with."""
    scheme = getattr(request, "param", "tcp")
    return {"tcp": "tcp://127.0.0.1:0", "ws": "ws://127.0.0.1:0/iris", "ipc": f"ipc://{tmp_path}/s"}[scheme]
