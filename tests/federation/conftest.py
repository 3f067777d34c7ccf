"""A terminal whose home is this process's, too: gateways there, nodes here."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.command import Terminal, open_terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[Terminal]:
    with open_terminal() as opened:
        for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, opened.environment[name])
        monkeypatch.chdir(opened.directory)
        yield opened
