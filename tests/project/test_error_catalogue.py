"""docs/reference/errors.md and the code: every error, every message family of what callers get, and every code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from iris.kernel import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
ERRORS = {name for name, _ in inspect.getmembers(errors, inspect.isclass) if issubclass(_, errors.IrisError)}
OF_CALLS = {name for name in ERRORS if issubclass(getattr(errors, name), errors.DeliveryError | errors.PayloadTooLarge)}
ROOMS = ("cluster", "federation", "kernel", "node", "patterns")

KINDS = {"OutOfDate": "AuthenticationError"}
"""Errors that are not public, and what programs catch them as."""


def messages() -> Iterator[tuple[str, str]]:
    """Yield each error that the code makes with a text, and the text, with … for what is filled in."""
    for room in (*ROOMS, "security"):
        for file in (ROOT / "iris" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    error = KINDS.get(node.func.id, node.func.id)
                    text = node.args[0] if node.args and error in ERRORS else None
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield error, text.value
                    elif isinstance(text, ast.JoinedStr):
                        parts = (part.value if isinstance(part, ast.Constant) else "…" for part in text.values)
                        yield error, "".join(map(str, parts))


def families() -> Iterator[tuple[str, str]]:
    """Yield each error of the page, with the messages of its tables."""
    for name, section in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL):
        for row in re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE):
            yield name, row


def of_family(family: str, message: str) -> bool:
    """Tell whether a message of the code is one of a family of the page."""
    return re.fullmatch(".*".join(map(re.escape, family.split("…"))) + "…*", message) is not None


def test_every_error_has_its_section_and_there_is_no_other() -> None:
    assert set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)) == ERRORS


def test_every_message_of_a_call_is_of_a_family_of_the_page() -> None:
    known = list(families())
    found = {(error, text) for error, text in messages() if error in OF_CALLS and error != "RemoteError"}
    assert len(found) > 40
    missing = {
        (error, text) for error, text in found if not any(name == error and of_family(one, text) for name, one in known)
    }
    assert missing == set()


def test_every_family_of_the_page_has_a_message() -> None:
    found = set(messages())
    for name, family in families():
        if name != "RemoteError":
            assert any(error == name and of_family(family, text) for error, text in found), (name, family)


def test_every_code_of_the_page_is_one_of_iris() -> None:
    source = "".join(file.read_text() for room in ROOMS for file in (ROOT / "iris" / room).rglob("*.py"))
    codes = [family for name, family in families() if name == "RemoteError"]
    assert len(codes) >= 5
    for code in codes:
        assert re.search(rf"[\"']{code.removeprefix('reply_')}[\"']", source) or f'"{code}"' in source, code
