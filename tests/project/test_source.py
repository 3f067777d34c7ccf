"""Rules for source text that no linter knows."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREES = ("iris", "tests", "benchmarks", "distribution", "examples", "docs")


def python_files(*trees: str) -> list[Path]:
    return sorted(
        file
        for tree in trees
        for file in (ROOT / tree).rglob("*.py")
        if not any(parent.is_symlink() for parent in file.parents)
    )


def source_files() -> list[Path]:
    return python_files("iris")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_tree_is_found() -> None:
    assert ROOT / "iris" / "kernel" / "errors.py" in source_files()
    assert ROOT / "iris" / "security" / "__init__.py" in source_files()


def test_nothing_is_left_for_later() -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    here = Path(__file__)
    assert [named(file) for file in python_files(*TREES) if file != here and pattern.search(file.read_text())] == []


def top_level_names() -> set[str]:
    return {"cluster", "federation", "patterns", "security", "spark_bridge"}


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_nothing_is_imported_under_its_folder_name_or_relatively() -> None:
    """Either would make a second copy of every class, and ``except`` would no longer recognise them."""
    folders = "|".join(top_level_names())
    might = re.compile(rf"\bfrom[\s\\]*(\.|({folders})\b)|\bimport\b.*((?<![.\w])({folders})\b|\\$)", re.MULTILINE)
    wrong = {
        f"{named(file)}: {name}"
        for file in python_files(*TREES)
        if might.search(text := file.read_text())  # parsing all of them takes long
        for name in imported(ast.parse(text))
        if name.startswith(".") or name.split(".")[0] in top_level_names()
    }
    assert wrong == set()


def test_every_module_says_what_it_is() -> None:
    assert [named(file) for file in source_files() if not ast.get_docstring(ast.parse(file.read_text()))] == []


def parsers_of_peer_bytes(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_untrusted") and not node.name.startswith("_"):
            yield node


def test_parsers_of_peer_bytes_say_which_error_they_raise() -> None:
    """In their own docstring, or in that of their module for all of them."""
    texts = {file: file.read_text() for file in source_files()}
    trees = [(file, ast.parse(text)) for file, text in texts.items() if "_untrusted" in text]
    functions = [(file, tree, function) for file, tree in trees for function in parsers_of_peer_bytes(tree)]
    silent = [
        f"{named(file)}: {function.name}"
        for file, tree, function in functions
        if not re.search(r"Error|Raises:", (ast.get_docstring(function) or "") + (ast.get_docstring(tree) or ""))
    ]
    assert functions
    assert silent == []


def test_no_merge_is_left_half_done() -> None:
    marks = re.compile(r"^(?:<{7} |>{7} |={7}$)", re.MULTILINE)
    texts = [*python_files(*TREES), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    assert [named(file) for file in texts if marks.search(file.read_text())] == []


def test_generated_files_are_not_committed() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode != 0:
        assert not (ROOT / ".git").exists(), listed.stderr  # an unpacked sdist has no history to look at
        return
    unwanted = re.compile(r"(__pycache__|\.egg-info|\.pyc$|^build/|^dist/|\.coverage$)")
    assert [name for name in listed.stdout.splitlines() if unwanted.search(name)] == []
