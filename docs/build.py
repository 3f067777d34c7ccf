"""``make docs``: checks what the pages promise, and builds the site.

- docs/cast.py draws the terminal of the README from the tutorial.
- Every link to a file or heading leads somewhere.
- Every code block is of a kind that docs/pages.py knows.  Python compiles, files parse, and the verbs, options, modules
  and targets of commands exist.  Tests run the rest.
- The site is in build/site.  It works from files, without network.

``--check`` changes nothing and fails if a page is out of date; it builds no site.
"""

from __future__ import annotations

import argparse
import configparser
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import click

from docs.cast import cast
from docs.pages import FENCE, LANGUAGES, ROOT, Block, blocks, pages
from docs.tables import expanded
from iris.cli.main import iris

SITE: Final = ROOT / "build" / "site"
DOCTREES: Final = ROOT / "build" / "doctrees"
LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def generated() -> dict[Path, str]:
    """Return the files that are written from the code, and what has to stand in them."""
    return cast()


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    plain = FENCE.sub("", text)
    titles = [re.sub(r"[`*]", "", heading).strip().lower() for heading in HEADING.findall(plain)]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """Name every link of ``page`` to a file or heading that is not there."""
    for groups in LINK.findall(FENCE.sub("", expanded(page.read_text()))):
        target = groups[0] or groups[1]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            yield f"{page.relative_to(ROOT)}: there is no {target}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(expanded(file.read_text())):
            yield f"{page.relative_to(ROOT)}: {name or 'the page'} has no heading #{anchor}"


def broken_blocks(page: Path) -> Iterator[str]:
    """Name every code block of ``page`` that is of no known kind, or not what it says."""
    for indented in re.findall(r"(?:(?<=\n\n)|\A) {4}(.*)", FENCE.sub("", page.read_text())):
        yield f"{page.relative_to(ROOT)}: put a fence around what is indented, which no test sees: {indented}"
    for block in blocks(page):
        if block.language not in LANGUAGES:
            yield f"{block.place}: docs/pages.py knows no block of {block.language or 'no language'}"
        if block.file is not None and not block.file.exists():
            yield f"{block.place}: there is no {block.file}"
        try:
            if block.language == "python":
                # PyCF_ALLOW_TOP_LEVEL_AWAIT: snippets of coroutines
                compile(block.code, block.place, "exec", flags=0x2000, dont_inherit=True)
            elif block.language == "toml":
                tomllib.loads(block.code)
            elif block.language == "json":
                json.loads(block.code)
            elif block.language == "ini":
                configparser.ConfigParser(strict=False, interpolation=None).read_string(block.code)
        except (SyntaxError, ValueError, configparser.Error) as error:
            yield f"{block.place}: {error}"
        if block.language == "sh":
            yield from broken_commands(block)


def broken_commands(block: Block) -> Iterator[str]:
    """Name every command of a block whose verb, option, module, test or target is not there."""
    for line in re.sub(r"\\\n\s*", "", block.code).splitlines():
        words = shlex.split(line, comments=True)
        for both, command in groupby(words, key=lambda word: word == "&&"):
            if not both and (problem := _problem(list(command))):
                yield f"{block.place}: {problem}"


def _problem(words: list[str]) -> str:
    """Return what is wrong with a command, "" for nothing that can be told without running it."""
    program, *arguments = words or [""]
    if program == "iris":
        return _problem_of_verb(arguments)
    if program == "python" and arguments[:1] == ["-m"]:
        return "" if importlib.util.find_spec(arguments[1]) else f"there is no module {arguments[1]}"
    if program in ("python", "pytest"):
        files = [argument.partition("::")[0] for argument in arguments if argument.partition("::")[0].endswith(".py")]
        return "".join(f"there is no {file}" for file in files if not (ROOT / file).exists())
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return "".join(f"no target {name}" for name in arguments if "=" not in name and name not in targets)
    return ""


def _problem_of_verb(arguments: list[str]) -> str:
    command: click.Command = iris
    context = click.Context(iris, info_name="iris")
    while isinstance(command, click.Group):
        arguments = [word for word in arguments if word not in ("-v", "--verbose")]
        if not arguments or arguments[0].startswith("-"):
            return ""
        name, *arguments = arguments
        inner = command.get_command(context, name)
        if inner is None:
            return f"there is no iris {name}"
        command = inner
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in arguments if word.startswith("--") and word.partition("=")[0] not in options]
    return "".join(f"iris {command.name} has no {word}" for word in unknown if word != "--help")


def sphinx(site: Path, doctrees: Path, *tags: str) -> list[str]:
    """Return the command that builds the site from all pages anew; a warning is an error, and docs/conf.py has tags."""
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-E", "-j", "auto"]
    return [*command, *(f"-t{tag}" for tag in tags), "-d", str(doctrees), "docs", str(site)]


def main() -> int:
    """Build or check; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the reference pages, check the pages and build the site.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is out of date")
    check: bool = parser.parse_args().check
    wrong: list[str] = []
    for file, text in generated().items():
        if not check:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            wrong.append(f"{file.relative_to(ROOT)} is out of date: run make docs")
    wrong += [complaint for page in pages() for complaint in (*broken_links(page), *broken_blocks(page))]
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    if wrong:
        return 1
    return 0 if check else subprocess.run(sphinx(SITE, DOCTREES), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
