"""What is compiled for the soak is what the product runs.  To compile takes a minute; the program compares traces."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.membership import compiled

_ROOT = Path(compiled.__file__).resolve().parents[2]


def _trees(module: str) -> tuple[ast.Module, ast.Module]:
    source = (_ROOT / module).read_text()
    return ast.parse(source), ast.parse(compiled.compilable(source))


@pytest.mark.parametrize("module", compiled.MODULES)
def test_only_the_slots_of_dataclasses_are_taken_from_what_is_compiled(module: str) -> None:
    before, after = _trees(module)
    for node in ast.walk(before):
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "slots"]
    assert ast.dump(before) == ast.dump(after)


@pytest.mark.parametrize("module", compiled.MODULES)
def test_what_is_compiled_makes_its_values_with_the_dataclass_that_mypyc_knows(module: str) -> None:
    _, after = _trees(module)
    for node in ast.walk(after):
        if isinstance(node, ast.Call) and "dataclass" in ast.unparse(node.func):
            assert "slots" not in {keyword.arg for keyword in node.keywords}, "Python's own makes another class then"


@pytest.mark.parametrize("module", compiled.MODULES)
def test_nothing_that_is_compiled_matches_the_rest_of_a_sequence(module: str) -> None:
    # mypyc takes what is left of a tuple for a list, and fails when it comes.
    assert not [node for node in ast.walk(_trees(module)[0]) if isinstance(node, ast.MatchStar)]


def test_the_machines_of_membership_are_among_it() -> None:
    imported = {
        f"{node.module.replace('.', '/')}.py"
        for module in compiled.MODULES
        for node in ast.walk(_trees(module)[0])
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("iris.cluster.swim.")
    }
    assert imported <= set(compiled.MODULES)


def test_nothing_is_measured_with_machines_that_do_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    compiled.check_same("0123 45\n", "0123 45\n")
    assert "the trace is the same: 0123 45" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="do otherwise: 0123 45, not 6789 45"):
        compiled.check_same("0123 45\n", "6789 45\n")
