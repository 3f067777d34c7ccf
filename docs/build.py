"""``make docs``: writes the reference of the command, and checks what the pages promise.

- docs/command.md is what ``iris VERB --help`` says.
- Every link to a file or heading leads somewhere.
- Every Python example compiles; one that begins with a comment naming a file is that file, letter by letter, so that
  the example people read is the one that tests run.

``--check`` changes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from iris.cli.main import iris

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ROOT / "docs" / "command.md"

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
NAMED = re.compile(r"# (examples/[\w/]+\.py)\n")


def pages() -> list[Path]:
    """Every Markdown page of the project."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def command_reference() -> str:
    """Return docs/command.md."""
    context = click.Context(iris, info_name="iris", **iris.context_settings)
    parts = [
        "# The `iris` command\n",
        "Written by `make docs` from the command itself; do not edit.\n",
        f"```\n{_help(iris, context)}\n```\n",
    ]
    parts.extend(_references(iris, context))
    return "\n".join(parts)


def _references(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, parent=context, info_name=name, **command.context_settings)
        yield f"## {inner.command_path}\n"
        yield f"```\n{_help(command, inner)}\n```\n"
        if isinstance(command, click.Group):
            yield from _references(command, inner)


def _help(command: click.Command, context: click.Context) -> str:
    context.terminal_width = 100
    context.max_content_width = 100
    return command.get_help(context).rstrip()


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    plain = FENCE.sub("", text)
    titles = [re.sub(r"[`*_]", "", heading).strip().lower() for heading in HEADING.findall(plain)]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """Name every link of ``page`` to a file or heading that is not there."""
    for groups in LINK.findall(FENCE.sub("", page.read_text())):
        target = groups[0] or groups[1]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            yield f"{page.relative_to(ROOT)}: there is no {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"{page.relative_to(ROOT)}: {name or 'the page'} has no heading #{anchor}"


def broken_examples(page: Path) -> Iterator[str]:
    """Name every Python example of ``page`` that does not compile or differs from the file that it names."""
    for language, code in FENCE.findall(page.read_text()):
        if language != "python":
            continue
        try:
            compile(code, str(page), "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT: snippets of coroutines
        except SyntaxError as error:
            yield f"{page.relative_to(ROOT)}: an example does not compile: {error.msg}: {(error.text or '').strip()}"
        named = NAMED.match(code)
        if named and code[named.end() :].strip() != (ROOT / named[1]).read_text().strip():
            yield f"{page.relative_to(ROOT)}: the example differs from {named[1]}"


def main() -> int:
    """Build or check; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the reference pages and check links and examples.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is out of date")
    check: bool = parser.parse_args().check
    wrong = [complaint for page in pages() for complaint in (*broken_links(page), *broken_examples(page))]
    reference = command_reference()
    if not check:
        COMMAND.write_text(reference)
    elif not COMMAND.exists() or COMMAND.read_text() != reference:
        wrong.append("docs/command.md is out of date: run make docs")
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
