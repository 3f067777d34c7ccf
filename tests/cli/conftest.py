"""A desk or a realm for every test that wants one."""

from __future__ import annotations

from pathlib import Path

import pytest

from iris.cli.main import run_command
from tests.support.desk import Desk


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Desk:
    """Verbs run in this process, beside a cluster on a network in memory."""
    monkeypatch.chdir(tmp_path)
    return Desk(monkeypatch, capsysbinary, tmp_path)


@pytest.fixture
def realm(capsys: pytest.CaptureFixture[str]) -> None:
    """A realm in realm.key with the credential store.iris."""
    assert run_command(["keys", "realm", "realm.key"]) == 0
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "store.iris"]) == 0
    capsys.readouterr()
