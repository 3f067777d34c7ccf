"""A desk for every test that wants one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.desk import Desk


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Desk:
    """Verbs run in this process, beside a cluster on a network in memory."""
    monkeypatch.chdir(tmp_path)
    return Desk(monkeypatch, capsysbinary, tmp_path)
