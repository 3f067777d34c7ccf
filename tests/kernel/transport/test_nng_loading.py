"""Libraries that import what we never use are spared it, and get it all the same if they do use it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from iris.kernel.transport.nng import deferred


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has imported yet."""
    name = "heavy_for_deferring"
    (tmp_path / f"{name}.py").write_text("answer = 42\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_the_import_within_loads_nothing(heavy: str) -> None:
    with deferred(heavy):
        held = importlib.import_module(heavy)
    assert heavy not in sys.modules
    assert "answer" not in vars(held)


def test_who_imported_it_within_has_it_with_the_first_use(heavy: str) -> None:
    with deferred(heavy):
        held = importlib.import_module(heavy)
    assert held.answer == 42
    assert sys.modules[heavy].answer == 42
    with pytest.raises(AttributeError, match="question"):
        _ = held.question


def test_it_may_be_used_within_the_block(heavy: str) -> None:
    with deferred(heavy):
        assert importlib.import_module(heavy).answer == 42
        assert sys.modules[heavy].answer == 42
    assert sys.modules[heavy].answer == 42


def test_what_is_loaded_already_stays(heavy: str) -> None:
    real = importlib.import_module(heavy)
    with deferred(heavy):
        assert importlib.import_module(heavy) is real
    assert sys.modules[heavy] is real


def test_an_error_within_leaves_nothing_behind(heavy: str) -> None:
    with pytest.raises(ZeroDivisionError), deferred(heavy):
        raise ZeroDivisionError
    assert heavy not in sys.modules
