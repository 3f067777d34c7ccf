"""What docs/reference/command.md has of the command: every verb with its arguments, help and options."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import click

from iris.cli.main import iris

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


def command_reference() -> str:
    """Return what docs/reference/command.md says of the verbs and their options."""
    context = click.Context(iris, info_name="iris", **iris.context_settings)
    shared = _shared(context)
    parts = [
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
