"""Numbers: every verb that takes one refuses what is none."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import click
import pytest

from iris.cli.main import MISUSED, VERBS, run_command
from iris.cli.terminal import Finite, Whole


def options(
    command: click.Command, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, click.ParamType[Any]]]:
    """Return each option of a command and of those below it: the command's path, the option's name and its type."""
    for option in command.params:
        if isinstance(option, click.Option):
            yield path, option.opts[0], option.type
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from options(inner, (*path, name))


EVERY = [
    found
    for verb, module in VERBS.items()
    for found in options(getattr(importlib.import_module(module), verb), (verb,))
]
FINITE = [(path, name) for path, name, kind in EVERY if isinstance(kind, Finite)]
WHOLE = [(path, name) for path, name, kind in EVERY if isinstance(kind, Whole)]


def test_no_option_takes_whole_numbers_that_are_no_decimal_digits() -> None:
    assert [option for option in EVERY if option[2].name.startswith("int") and not isinstance(option[2], Whole)] == []
    assert {(("bridge",), "--shard"), (("sub",), "--count"), (("queue", "peek"), "--most")} < set(WHOLE)


def test_no_option_takes_floats_that_are_no_numbers() -> None:
    assert [
        option for option in EVERY if option[2].name.startswith("float") and not isinstance(option[2], Finite)
    ] == []
    assert {(("keys", "cluster"), "--days"), (("gateway",), "--rate"), (("bench",), "--seconds")} < set(FINITE)
    assert {(("bridge",), "--keep-mib"), (("bridge", "tail"), "--timeout"), (("pub",), "--timeout")} < set(FINITE)


@pytest.mark.parametrize(("path", "option"), FINITE)
def test_what_is_no_finite_number_is_a_wrong_command_line(
    path: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["a", "b"] if path[0] in {"pub", "request", "survey", "tunnel", "keys"} else []
    for text in ("nan", "inf", "-inf", "1e999", "1_0", "\u0663"):
        status = run_command([*path, *arguments, f"{option}={text}"])
        said = capsys.readouterr()
        assert (status, said.out, said.err.count("\n")) == (MISUSED, "", 1)
        assert said.err.startswith(f"iris: Invalid value for '{option}': ")


@pytest.mark.parametrize(("text", "number"), [("0.05", 0.05), ("1e3", 1000.0), ("7", 7.0)])
def test_numbers_are_taken_as_before(text: str, number: float) -> None:
    assert Finite(0, min_open=True).convert(text, None, None) == number


@pytest.mark.parametrize("text", ["1_0", "\u0663", " 3", "3.0"])
def test_a_whole_number_has_decimal_digits(text: str) -> None:
    assert Whole(1).convert("03", None, None) == 3
    with pytest.raises(click.BadParameter):
        Whole(1).convert(text, None, None)
