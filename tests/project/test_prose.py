"""The English of the pages: no turn of phrase that this project has banned, and no misspelling that codespell knows."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from docs.pages import FENCE, ROOT, pages

BANNED = {
    "whoever": "name the one who does it: the node, the caller, you",
    "of which one or more": "say how many",
    "held for lost": "presumed dead",
    "holds back none": "say what goes on",
    "at most as many being": "one idea a sentence",
    "it should be noted": "note it, or leave it out",
    "please note": "leave it out",
    "in order to": "to",
    "leverage": "use",
    "utilize": "use",
    "simply": "leave it out: it is not simple for a reader who looks it up",
    "obviously": "leave it out",
    "blazing": "give the figure",
    "seamless": "say what it does",
}
GENERATED = {"command.md", "config.md"}  # the words of the code
ON_THE_WIRE = {"protocol.md", "membership.md"}  # specifications
PROSE = [page for page in pages() if page.name not in {"CHANGELOG.md"} | GENERATED | ON_THE_WIRE]


def prose(text: str) -> str:
    """Return a page without code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


@pytest.mark.parametrize("phrase", BANNED)
def test_no_page_has_a_banned_phrase(phrase: str) -> None:
    pattern = re.compile(rf"\b{re.escape(phrase)}\b", re.IGNORECASE)
    found = [
        f"{page.relative_to(ROOT)}: {phrase!r}: {BANNED[phrase]}"
        for page in PROSE
        if pattern.search(prose(page.read_text()))
    ]
    assert found == []


def test_code_is_no_prose() -> None:
    assert "whoever" not in prose("`whoever`\n\n```python\nwhoever\n```\n")
    assert "whoever" in prose("whoever\n")


def test_codespell_finds_nothing() -> None:
    files = [str(page) for page in pages() if page.name not in {"CHANGELOG.md", "protocol.md"}]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *files], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
