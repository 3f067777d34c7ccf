"""Figures of a tree: floors, circles, lines of code.

``python docs/rooms.py [CHECKOUT]`` prints them.  A floor stands above all that it imports; a circle is a set of
modules that import each other.  Every import counts, also those within functions and those for type checkers.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

LAYERS = ("kernel", "security", "cluster", "patterns", "federation", "spark_bridge")
Graph = Mapping[str, set[str]]


def sources(root: Path) -> dict[str, Path]:
    """Return the files of the package by module name, wherever the checkout keeps them."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for folder in [root / "iris", *(path for path in (root / "iris").iterdir() if path.is_dir())]
        for path in (folder.glob("*.py") if folder == root / "iris" else folder.rglob("*.py"))
    }


def imports(files: Mapping[str, Path]) -> Graph:
    """Return which modules each module imports.  A facade stands for what it is taken from."""
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found = graph.setdefault(module, set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name if name in files else str(node.module) for name in names} & files.keys() - {module}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & files.keys() - {module}
    return graph


def rooms(graph: Graph, layer: str) -> Graph:
    """Return the imports between the entries of a layer: its files and folders."""
    prefix = f"iris.{layer}."
    found: dict[str, set[str]] = {}
    for module, others in graph.items():
        if module.startswith(prefix):
            room = module.removeprefix(prefix).split(".")[0]
            found.setdefault(room, set()).update(
                other
                for name in others
                if name.startswith(prefix) and (other := name[len(prefix) :].split(".")[0]) != room
            )
    return found


def circles(graph: Graph) -> list[set[str]]:
    """Return the sets of nodes of which each is reached from each."""
    reached = {node: reach(graph, node) for node in graph}
    found = {frozenset({node} | {other for other in reached[node] if node in reached.get(other, ())}) for node in graph}
    return [set(circle) for circle in found if len(circle) > 1]


def reach(graph: Graph, start: str) -> set[str]:
    """Return what is reached from a node in one step or more."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            waiting += graph.get(node, ())
    return seen


def floors(graph: Graph) -> int:
    """Return how many floors there are.  A circle is one floor."""
    where = {node: frozenset(circle) for circle in circles(graph) for node in circle}
    height: dict[frozenset[str], int] = {}

    def climb(node: str) -> int:
        circle = where.get(node, frozenset({node}))
        if circle not in height:
            below = {other for member in circle for other in graph.get(member, ())} - circle
            height[circle] = 1 + max(map(climb, below), default=0)
        return height[circle]

    return max(map(climb, graph), default=0)


def code_lines(path: Path) -> int:
    """Return how many lines of a file have code: neither blank, nor a comment, nor of a text that is no value."""
    text = path.read_text()
    prose = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in prose for number, line in lines)


def main(root: Path) -> None:
    """Print the figures of a checkout."""
    files = sources(root)
    graph = imports(files)
    lengths = [len(path.read_text().splitlines()) for path in files.values()]
    print(f"files {len(files)}, lines {sum(lengths)}, median {median(lengths):.0f}, longest {max(lengths)}")
    print(f"circles of files {len(circles(graph))}")
    print("\n| layer | floors | circles |\n|---|---|---|")
    for layer in LAYERS:
        inside = rooms(graph, layer)
        print(f"| {layer} | {floors(inside)} | {len(circles(inside))} |")
    print("\n| package | lines | of them code |\n|---|---|---|")
    packages: dict[str, list[Path]] = {}
    for path in files.values():
        first = path.relative_to(root / "iris").parts[0]
        packages.setdefault(first, []).append(path)
        packages.setdefault("all", []).append(path)
    for name, paths in sorted(packages.items(), key=lambda item: -len(item[1])):
        print(
            f"| {name} | {sum(len(path.read_text().splitlines()) for path in paths)} | {sum(map(code_lines, paths))} |"
        )


if __name__ == "__main__":
    main(Path(*sys.argv[1:]).resolve())
