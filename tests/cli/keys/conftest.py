"""A directory of its own for every test of keys, without a passphrase in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from iris.cli.terminal import VARIABLE


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
