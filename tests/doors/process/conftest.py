"""Fixtures of tests of the verb ``iris door``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command import Terminal, open_terminal
from tests.support.door_process import serving


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Return a terminal in whose realm the cluster ``greeters`` has a member."""
    with open_terminal() as opened, serving(opened):
        yield opened
