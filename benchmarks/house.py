"""How much there is to know before one can change something, counted from the syntax trees: ``benchmarks.house``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

FRAGMENT: Final = re.compile(
    r"(What|Whether|How|Of|Those|When|By|That|Its|Which|Who|Whom|Where|Until|For each|To be|As|At|In|From) "
)
"""How a docstring begins that is no sentence."""


def files(*folders: str) -> list[Path]:
    """Return the sources in these folders of the checkout."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def lines(paths: Iterable[Path]) -> int:
    """Return how many lines these files have."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def open_slots(tree: ast.AST) -> Iterator[str]:
    """Yield public attributes that hold a function and that other objects can set."""
    for one in ast.walk(tree):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Attribute):
            kind = ast.unparse(one.annotation)
            own = ast.unparse(one.target.value) == "self" and not one.target.attr.startswith("_")
            if own and "Callable" in kind and "dict" not in kind and "Final" not in kind:
                yield one.target.attr


def constructors(tree: ast.AST) -> Iterator[list[ast.arg]]:
    """Yield the arguments of each constructor."""
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            given = one.args
            yield [each for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if each.arg != "self"]


def private_attributes(tree: ast.AST) -> Iterator[str]:
    """Yield private attributes of other objects that are touched."""
    for one in ast.walk(tree):
        if isinstance(one, ast.Attribute) and one.attr.startswith("_") and not one.attr.startswith("__"):
            own = isinstance(one.value, ast.Name) and one.value.id in {"self", "cls"}
            if not own:
                yield one.attr


def main() -> None:
    """Print the table."""
    source, tests = files("iris"), files("tests")
    texts = [path.read_text() for path in source]
    trees = [ast.parse(text) for text in texts]
    text = "\n".join(texts)
    arguments = [given for tree in trees for given in constructors(tree)]
    functions = sum(
        "Callable" in ast.unparse(one.annotation) for given in arguments for one in given if one.annotation is not None
    )
    docstrings = re.findall(r'^ *"""(.*)', text, re.MULTILINE)
    fragments = sum(bool(FRAGMENT.match(docstring)) for docstring in docstrings)
    private = sum(len(list(private_attributes(ast.parse(path.read_text())))) for path in tests)
    print("| what | how many |\n|---|---|")
    for what, figure in (
        ("public attributes that hold a function and can be set", sum(len(list(open_slots(tree))) for tree in trees)),
        ("functions among the arguments of constructors", functions),
        ("arguments of the largest constructor", max(map(len, arguments))),
        ("mentions of `Any`", len(re.findall(r"\bAny\b", text))),
        ("casts", len(re.findall(r"\bcast\(", text))),
        ("comments that quiet a type checker", len(re.findall(r"(?:type|pyright): ignore", text))),
        ("comments that quiet the linter", text.count("# noqa")),
        ("private attributes that tests touch", private),
        ("docstrings that begin as a fragment", fragments),
        ("lines of `Node`", lines([ROOT / "iris" / "node" / "node.py"])),
        ("files of iris", len(source)),
        ("lines of iris", lines(source)),
        ("lines of tests and benchmarks", lines([*tests, *files("benchmarks")])),
    ):
        print(f"| {what} | {figure:,} |")


if __name__ == "__main__":
    main()
