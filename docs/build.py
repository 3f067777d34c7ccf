"""``make docs``: writes the reference that comes from the code, checks what the pages promise, and builds the site.

- docs/reference/command.md is what ``iris VERB --help`` says, docs/reference/config.md what iris/kernel/config.py says.
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
import copy
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

import click

from docs.cast import cast
from docs.config_reference import config_reference
from docs.pages import FENCE, LANGUAGES, ROOT, Block, blocks, pages
from iris.cli.main import iris

REFERENCE: Final = ROOT / "docs" / "reference"
SITE: Final = ROOT / "build" / "site"
DOCTREES: Final = ROOT / "build" / "doctrees"
CONNECTION: Final = {"credential", "seeds", "listen", "site", "prefer_site", "dial_only", "dial_networks"}
"""Options that all verbs have which open a node: the page has them once."""
BAR: Final = r"\|"
"""How a cell of a table has a bar."""
SEVERAL: Final = 3
"""An option that so many verbs have in the same words stands once on the page."""
EXTRA: Final = re.compile(r"  \[([^]]+)\]$")
"""Behind the help of an option: its default, its least and greatest value, and whether it is required."""
OF_PAYLOADS: Final = re.compile(r"PAYLOAD is a text; @FILE\s+sends the bytes of a file, - those of standard input\.")
"""What the help of several verbs says and the page has once."""
LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def command_reference() -> str:
    """Return docs/reference/command.md."""
    context = click.Context(iris, info_name="iris", **iris.context_settings)
    shared = _shared(context)
    parts = [
        "# The `iris` command\n",
        "Written by `make docs` from the command itself; do not edit. `-h` shows all of a verb.\n",
        f"```text\n{_full_help(context)}\n```\n",
        "## Options of several verbs\n",
        "A verb has those that stand behind *Also*.\n",
        "PAYLOAD is a text; `@FILE` sends the bytes of a file, `-` those of standard input.\n",
        *_table(shared),
        "## Connection\n",
        "Each verb that opens a node takes these, or [variables](environment.md) in their place:\n",
        *_table(_connection(context)),
    ]
    parts.extend(_references(iris, context, shared))
    return "\n".join(parts)


def _table(records: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield "| option | what it does |\n|---|---|"
    yield from (f"| `{option.replace('|', BAR)}` | {text} |" for option, text in records)
    yield ""


def _connection(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the options of a connection, and what ``--help`` says of each."""
    command = iris.get_command(context, "request")
    assert command is not None
    for parameter in command.params:
        if parameter.name in CONNECTION and (record := parameter.get_help_record(context)):
            yield record


def _record(parameter: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    """Return an option and what ``--help`` says of it, but for its least and greatest value; None of an argument."""
    found = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
    if found is None:
        return None
    extra = EXTRA.search(found[1])
    kept = [] if extra is None else [part for part in extra[1].split("; ") if not re.search("x[<>]", part)]
    text = EXTRA.sub(f"  [{'; '.join(kept)}]" if kept else "", found[1])
    return re.sub("(FLOAT|INTEGER) RANGE", "N", found[0]), text


def _shared(context: click.Context) -> dict[tuple[str, str], str]:
    """Return the options that several verbs have in the same words, and how a verb names each.

    That is its name, or all before its text where two have one name.
    """
    counts: Counter[tuple[str, tuple[str, str]]] = Counter()
    for command, inner in _verbs(iris, context):
        for parameter in command.params:
            record = _record(parameter, inner)
            if record and parameter.name not in CONNECTION:
                counts[max(parameter.opts, key=len), record] += 1
    found = [key for key, count in counts.most_common() if count >= SEVERAL]
    names = Counter(name for name, _ in found)
    return {record: name if names[name] == 1 else record[0] for name, record in found}


def _verbs(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, parent=context, info_name=name, **command.context_settings)
        yield command, inner
        if isinstance(command, click.Group):
            yield from _verbs(command, inner)


def _references(group: click.Group, context: click.Context, shared: dict[tuple[str, str], str]) -> Iterator[str]:
    connection = set(_connection(context))
    for command, inner in _verbs(group, context):
        records = [record for parameter in command.params if (record := _record(parameter, inner))]
        own = [record for record in records if record not in connection and record not in shared]
        also = [f"`{label}`" for record, label in shared.items() if record in records]
        if connection & set(records):
            also.append("[connection](#connection)")
        yield f"## {inner.command_path}\n"
        yield f"```text\n{_help(command, inner, own)}\n```\n"
        if also:
            yield f"Also {', '.join(also)}.\n"


def _full_help(context: click.Context) -> str:
    context.terminal_width = context.max_content_width = 100
    shown = copy.copy(iris)
    shown.add_help_option = False
    return shown.get_help(context).partition("\n\nCommands:")[0].rstrip()


def _help(command: click.Command, context: click.Context, records: list[tuple[str, str]]) -> str:
    """Return arguments, help text and options of a verb; a group's own sections list its verbs."""
    context.terminal_width = context.max_content_width = 100
    formatter = context.make_formatter()
    usage = [
        piece for piece in command.collect_usage_pieces(context) if piece not in ("[OPTIONS]", "COMMAND [ARGS]...")
    ]
    if usage:
        formatter.write_usage("", " ".join(usage), prefix="Arguments:")
    shown = copy.copy(command)
    shown.help = OF_PAYLOADS.sub("", command.help or "")
    shown.format_help_text(context, formatter)
    if records:
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_dl(records)
    return re.sub(r"\n{3,}", "\n\n", formatter.getvalue()).strip("\n")


def generated() -> dict[Path, str]:
    """Return the files that are written from the code, and what has to stand in them."""
    return {
        REFERENCE / "command.md": command_reference(),
        REFERENCE / "config.md": config_reference(),
        **cast(),
    }


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    plain = FENCE.sub("", text)
    titles = [re.sub(r"[`*]", "", heading).strip().lower() for heading in HEADING.findall(plain)]
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
