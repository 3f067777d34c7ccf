"""docs/reference/errors.md and the code: every error, every message with its remedy, and every code."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from iris.kernel import errors
from iris.spark_bridge import errors as bridge_errors

pytestmark = pytest.mark.xdist_group("catalogue")  # one process reads the code, once

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
ERRORS = {name for name, _ in inspect.getmembers(errors, inspect.isclass) if issubclass(_, errors.IrisError)}
OF_BRIDGES = {name for name, _ in inspect.getmembers(bridge_errors, inspect.isclass)} - ERRORS
SOURCES = [
    file
    for file in (ROOT / "iris").rglob("*.py")
    if file.relative_to(ROOT / "iris").parts[0] not in ("bench", "demo")  # programs, which are not caught by others
]

KINDS = {
    "HeldOff": "NotSent",
    "LockHeld": "ConfigError",
    "UnreadableFile": "ConfigError",
    "NoWayBack": "NotSent",
    "NotAdmitted": "AuthenticationError",
    "NotDialled": "NotSent",
    "OutOfDate": "AuthenticationError",
    "Refused": "NotSent",
    "TooManyChanges": "RemoteProtocolError",
    "TooMuchWork": "RemoteProtocolError",
    "TurnedAway": "NotSent",
}
"""Errors that are not public, and what programs catch them as."""

VERBS = (
    "add|annotate|begin|check|choose|copy|define|drop|finish|forget|give|have|issue|leave|make|mount|move|name|open|pass"
    "|pip install|publish|raise|remove|restart|return|run|seal|see|send|set|start|stop|take|use|write"
)
SAYS_WHAT_TO_DO = re.compile(rf"[:;,(] ?(?:or |then )?(?:{VERBS})\b")
"""A message of ConfigError that does so needs no row."""


@functools.cache
def nodes() -> list[ast.AST]:
    """Return what there is of calls and classes in the code."""
    return [
        node
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call | ast.ClassDef)
    ]


def messages() -> Iterator[tuple[str, str]]:
    """Yield each error that the code makes with a text, and the text, with … for what is filled in."""
    for node in nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            error = KINDS.get(node.func.id, node.func.id)
            text = node.args[0] if node.args and error in ERRORS else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield error, text.value
            elif isinstance(text, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in text.values)
                yield error, "".join(map(str, parts))


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield each error of the page, with the messages of its tables and their remedies; a row may have several."""
    for name, section in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
        for row in re.findall(r"^\| (`.+) \|$", section, re.MULTILINE):
            cells = re.split(r" \| ", row)
            assert len(cells) == 3, row
            for message in cells[0].split("<br>"):
                yield name, message.strip("`"), cells[2]


def families() -> Iterator[tuple[str, str]]:
    """Yield each error of the page, with the messages of its tables."""
    for name, message, _ in rows():
        if name != "BridgeError":
            yield name, message


def of_family(family: str, message: str) -> bool:
    """Return whether a message of the code is one of a family of the page."""
    return re.fullmatch(".*".join(map(re.escape, family.split("…"))) + "…*", message) is not None


def missing(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the messages that are of no family of the page and do not say themselves what to do.

    A message that only passes another one on (``…: …``) is that other one.
    """
    known = list(families())
    return {
        (error, text)
        for error, text in found
        if error != "RemoteError"  # its codes are looked at below
        and re.search(r"\w", text)
        and not any(name == error and of_family(family, text) for name, family in known)
        and not (error == "ConfigError" and SAYS_WHAT_TO_DO.search(text))
    }


def test_every_error_has_its_section_and_there_is_no_other() -> None:
    assert set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) == ERRORS | {"BridgeError"}


def test_every_error_that_is_defined_is_in_the_catalogue() -> None:
    bases: dict[str, str] = {}
    for node in nodes():
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name):
                    bases[node.name] = base.id
    kin = {name for name in bases if "IrisError" in ancestors(name, bases)}
    assert kin - ERRORS - set(KINDS) == OF_BRIDGES
    assert {name: bases[name] for name in KINDS} == KINDS


def ancestors(name: str, bases: dict[str, str]) -> list[str]:
    """Return the bases of a class, the nearest first."""
    found: list[str] = []
    while name in bases and name not in found:
        found.append(name)
        name = bases[name]
    return [*found[1:], name]


def test_every_error_of_a_bridge_has_a_row() -> None:
    assert {message for name, message, _ in rows() if name == "BridgeError"} == OF_BRIDGES - {"BridgeError"}


def test_every_message_is_of_a_family_of_the_page_or_says_what_to_do() -> None:
    found = set(messages())
    assert len(found) > 450
    assert missing(found) == set()


def test_a_message_that_the_page_does_not_have_is_found() -> None:
    (known,) = [text for error, text in messages() if error == "NotSent" and "durable subscriber" in text]
    assert missing({("NotSent", known)}) == set()
    assert missing({("NotSent", known.replace("subscriber", "listener"))}) != set()
    assert missing({("ConfigError", "colour is …: no such colour")}) != set()
    assert missing({("ConfigError", "colour is …: use red or green")}) == set()


def test_every_row_has_a_remedy() -> None:
    assert [(name, message) for name, message, remedy in rows() if not re.search(r"\w", remedy)] == []


def test_every_family_of_the_page_has_a_message() -> None:
    found = set(messages())
    for name, family in families():
        if name != "RemoteError":
            assert any(error == name and of_family(family, text) for error, text in found), (name, family)


def test_every_code_of_the_page_is_one_of_iris() -> None:
    source = "".join(file.read_text() for file in SOURCES)
    codes = [family for name, family in families() if name == "RemoteError"]
    assert len(codes) >= 5
    for code in codes:
        assert re.search(rf"[\"']{code.removeprefix('reply_')}[\"']", source) or f'"{code}"' in source, code
