"""The English of the pages, of ``--help`` and of public docstrings: what a colleague would say, in sentences that end.

Tables, headings and code are left out.  codespell looks at all of a page.  Banned phrases are looked for in comments
and docstrings of all code, too.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click

import iris
from docs.pages import FENCE, ROOT, pages
from iris.cli.main import iris as command

BANNED = {
    "of which one or more": "say how many",
    "held for lost": "presumed dead",
    "held for dead": "presumed dead",
    "holds back none": "say what goes on",
    "at most as many being": "one idea a sentence",
    "at the most": "at most",
    "such a one": "say what it is",
    "it should be noted": "note it, or leave it out",
    "please note": "leave it out",
    "leverage": "use",
    "utilize": "use",
    "blazing": "give the figure",
    "seamless": "say what it does",
}
LONGEST = 40
"""Words of a sentence."""

WRITTEN_BY_PROGRAMS = {"CHANGELOG.md", "benchmarks.md"}
"""A history, and what ``make bench`` has written: the versions of all peers are one sentence."""

PROSE = [page for page in pages() if page.name not in WRITTEN_BY_PROGRAMS]
TABLE, HEADING, COMMENT = r"^ *\|.*$", r"^#+ .*$", r"<!--.*?-->"
INDENTED = r"(?:(?<=\n\n)|\A)(?: {4}.*\n)+"
PARAGRAPH = re.compile(r"\n\s*\n|^\s*(?:[-*]|\d+\.) |^\s+\w+: |^(?:Args|Raises|Returns|Yields):$", re.MULTILINE)


def prose(text: str) -> str:
    """Return a page or docstring without code."""
    return re.sub(r"`[^`\n]*`", "`code`", re.sub(r"``[^`]*``", "`code`", FENCE.sub("\n\n", text)))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page or docstring, but not those of tables and headings."""
    text = re.sub(INDENTED, "\n", prose(text))
    text = re.sub(rf"{TABLE}|{HEADING}", "", re.sub(COMMENT, "", text, flags=re.DOTALL), flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for paragraph in PARAGRAPH.split(text):
        yield from filter(None, re.split(r"(?<=[.?!])[)*]*\s+(?=[A-Z*(`])", " ".join(paragraph.split())))


def helps(group: click.Command = command, path: str = "iris") -> Iterator[tuple[str, str]]:
    """Yield what ``--help`` says of each verb and option."""
    yield path, group.help or ""
    for option in group.params:
        if isinstance(option, click.Option):
            yield f"{path} {option.opts[0]}", option.help or ""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            verb = group.get_command(context, name)
            assert verb is not None
            yield from helps(verb, f"{path} {name}")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings that are in the API reference."""
    for name in iris.__all__:
        value = getattr(iris, name)
        yield name, inspect.getdoc(value) or ""
        for attribute, member in inspect.getmembers_static(value) if inspect.isclass(value) else ():
            member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if not attribute.startswith("_") and inspect.isfunction(member):
                yield f"{name}.{attribute}", inspect.getdoc(member) or ""


def remarks(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield the comments and docstrings of all Python files that have a phrase, but not of this one, which has all."""
    for folder in ("iris", "tests", "benchmarks", "examples", "docs", "deploy"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file != Path(__file__).resolve() and pattern.search(" ".join(file.read_text().split())):
                with tokenize.open(file) as lines:
                    for token in tokenize.generate_tokens(lines.readline):
                        if token.type == tokenize.COMMENT or (
                            token.type == tokenize.STRING and token.string.startswith('"""')
                        ):
                            yield f"{file.relative_to(ROOT)}:{token.start[0]}", token.string


TEXTS = [
    *((str(page.relative_to(ROOT)), page.read_text()) for page in PROSE),
    *helps(),
    *docstrings(),
]


def test_no_text_has_a_banned_phrase() -> None:
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, BANNED))})\b", re.IGNORECASE)
    found = [
        f"{place}: {hit[0]!r}: {BANNED[' '.join(hit[0].lower().split())]}"
        for place, text in [*TEXTS, *remarks(pattern)]
        if (hit := pattern.search(" ".join(prose(text).split())))
    ]
    assert found == []


def test_no_sentence_is_longer_than_a_reader_holds() -> None:
    long = [
        f"{place}: {len(sentence.split())} words: {sentence}"
        for place, text in TEXTS
        for sentence in sentences(text)
        if len(sentence.split()) > LONGEST
    ]
    assert long == []


def test_a_sentence_that_begins_with_who_is_a_question() -> None:
    found = [
        f"{place}: {sentence}: name the one who does it"
        for place, text in TEXTS
        if place.endswith(".md")
        for sentence in sentences(text)
        if sentence.startswith("Who ") and len(sentence.split()) > 4 and not sentence.endswith("?")
    ]
    assert found == []


def test_code_is_no_prose() -> None:
    assert "leverage" not in prose("`leverage`\n\n```python\nleverage\n```\n")
    assert "leverage" in prose("leverage\n")


def test_a_page_falls_into_sentences_and_tables_and_headings_are_none() -> None:
    page = "# A title. Here\n\nOne [link. Two](x.md). (Two `a. B` c.)\n\n| a. B | c |\n|---|---|\n\n- Three\n- Four.\n"
    assert list(sentences(page)) == ["One link.", "Two.", "(Two `code` c.)", "Three", "Four."]
    docstring = "Do it.\n\nArgs:\n    one: first.\n    two: second\n        line.\n"
    assert list(sentences(docstring)) == ["Do it.", "first.", "second line."]


def test_every_kind_of_text_is_looked_at() -> None:
    places = {place for place, _ in TEXTS}
    assert {"docs/reference/wire/handshake.md", "docs/reference/config.md", "iris keys", "Node.request"} <= places


def test_codespell_finds_nothing() -> None:
    files = [str(page) for page in pages() if page.name != "CHANGELOG.md"]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *files], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
