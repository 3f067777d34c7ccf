"""Promises of the documents: links lead somewhere, examples are the code that runs, the reference is up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import iris
from docs.pages import FENCE, pages
from tests.support.command import PATIENCE, open_terminal

ROOT = Path(__file__).resolve().parents[2]


def test_links_examples_and_reference_are_up_to_date() -> None:
    build = [sys.executable, "-m", "docs.build", "--check"]
    done = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_example_of_the_readme_runs_as_it_stands() -> None:
    (code, *_) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    with open_terminal() as terminal:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=terminal.environment,
            cwd=terminal.directory,
            timeout=PATIENCE,
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.stderr == ""
    assert done.stdout == "hello world, from desk\n"


def test_files_and_tests_that_documents_name_exist() -> None:
    folders = ("iris", "tests", "benchmarks", "docs", "examples")
    files = [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = [
        (document.name, file, test)
        for document in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
        for file, test in re.findall(
            r"`((?:(?:iris|tests|benchmarks|docs|examples)/[\w/]+|test_\w+)\.py)(?:::(\w+))?", document.read_text()
        )
    ]
    assert len(named) > 100
    absent: list[tuple[str, str, str]] = []
    for document, file, test in named:
        places = [place for place in files if place == file or ("/" not in file and place.endswith(f"/{file}"))]
        if not any(not test or f"def {test}(" in (ROOT / place).read_text() for place in places):
            absent.append((document, file, test))
    assert absent == []


def test_every_public_name_is_in_the_api_reference_once() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").rglob("*.md"))
    named = re.findall(r"auto(?:class|function|exception|data):: iris\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(iris.__all__)


def test_a_program_that_only_the_site_shows_is_linked_under_its_place() -> None:
    """A forge shows the Markdown of a page, which has the name of the file where the site has the program."""
    places = [
        (page, match.end(), target[1])
        for page in pages()
        for match in FENCE.finditer(page.read_text())
        if (target := re.fullmatch(r"\{literalinclude\}\s*(.*)", match[2].strip()))
    ]
    assert len(places) > 50
    unlinked = [
        f"{page.relative_to(ROOT)}: {target}"
        for page, end, target in places
        if f"[{(page.parent / target).resolve().relative_to(ROOT)}]({target})"
        not in page.read_text()[end:].lstrip("\n").partition("\n")[0]
    ]
    assert unlinked == []


KINDS = {"concepts", "explanation", "howto", "reference", "tutorial"}
"""Kinds of pages: a page is of one kind, and stands in its folder."""
LONGEST = 2_500
"""Words of a page that people read from its beginning."""


def test_every_page_is_of_one_kind_and_the_wire_and_calls_are_short_enough_to_read() -> None:
    docs = ROOT / "docs"
    assert {page.name for page in docs.glob("*.md")} == {"index.md"}
    assert {page.relative_to(docs).parts[0] for page in docs.rglob("*/*.md")} == KINDS
    read = [*(docs / "reference" / "wire").glob("*.md"), *(docs / "reference" / "calls").glob("*.md")]
    assert len(read) > 8
    assert {page.name: words for page in read if (words := len(page.read_text().split())) > LONGEST} == {}


DEEP = ("explanation", "reference/wire")
"""Pages for those who change Iris, or want to know exactly; all others are for its users."""
WORDS_OF_USERS = 65_000
WORDS = 95_000
"""Words of all pages.  What the site takes from the code (docs/tables.py, docstrings) is not counted."""


def test_the_pages_do_not_grow_beyond_what_people_read() -> None:
    docs = ROOT / "docs"
    words = {page.relative_to(docs): len(page.read_text().split()) for page in docs.rglob("*.md")}
    of_users = sum(count for page, count in words.items() if not any(map(page.is_relative_to, DEEP)))
    assert of_users <= WORDS_OF_USERS
    assert sum(words.values()) <= WORDS
