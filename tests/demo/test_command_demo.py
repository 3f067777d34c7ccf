"""``iris demo`` as it is typed, without the airport: what it prints, and that it fails when anything differs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from iris.cli.main import run_command
from iris.demo import airport
from iris.demo.checks import Outcome
from iris.demo.data import FLIGHTS
from iris.demo.display import Stages
from iris.demo.page import next_commands
from iris.demo.processes import ProcessFailed
from iris.kernel.errors import ConfigError
from tests.support.outcomes import right_outcome

Flown = Callable[[Outcome | Exception], list[int]]


@pytest.fixture
def flown(monkeypatch: pytest.MonkeyPatch) -> Flown:
    """Let the airport come to this outcome; returns the rows it is asked for."""

    def fly(outcome: Outcome | Exception) -> list[int]:
        asked: list[int] = []

        async def run_airport(rows: int, stages: Stages, topic: object = None, page: object = None) -> Outcome:
            asked.append(rows)
            with stages.stage("Fly", total=rows, unit="flights"):
                if isinstance(outcome, Exception):
                    raise outcome
            return outcome

        monkeypatch.setattr(airport, "run_airport", run_airport)
        return asked

    return fly


def spoiled() -> Outcome:
    right = right_outcome()
    wrong = dataclasses.replace(right.spark["AA"], flights=2)
    return right_outcome(spark={**right.spark, "AA": wrong})


def test_the_status_is_0_when_everything_is_right(flown: Flown, capsys: pytest.CaptureFixture[str]) -> None:
    asked = flown(right_outcome())
    assert run_command(["demo"]) == 0
    assert asked == [FLIGHTS]
    said = capsys.readouterr()
    assert "American Airlines Inc." in said.out
    assert "5 flights in 2.0 s, at most 1.00 GiB in memory." in said.out
    assert "✗" not in said.out
    watch, stage = said.err.splitlines()
    assert watch.startswith("iris: watch it at http://127.0.0.1:")
    assert stage.startswith("Fly: 336,776 flights in 0.")
    commands = said.out.partition("Go on, each in a terminal of its own:\n")[2]
    assert [line.strip() for line in commands.splitlines()] == next_commands()


def test_the_status_is_1_when_a_number_differs(flown: Flown, capsys: pytest.CaptureFixture[str]) -> None:
    flown(spoiled())
    assert run_command(["demo"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (carrier,) = (line for line in lines if "American Airlines" in line)
    assert "✗" in carrier
    assert any("✗" in line and "they differ about AA" in line for line in lines)


@pytest.mark.parametrize(
    "change",
    [
        {"killed": "exit status 0"},
        {"archived": {**right_outcome().archived, "bytes": 101}},
        {"rows": 6},
    ],
)
def test_the_status_is_1_when_anything_else_is_wrong(change: dict[str, Any], flown: Flown) -> None:
    flown(right_outcome(**change))
    assert run_command(["demo", "--json"]) == 1


def test_scripts_get_one_json_object(flown: Flown, capsys: pytest.CaptureFixture[str]) -> None:
    asked = flown(right_outcome())
    assert run_command(["demo", "--rows", "5", "--json"]) == 0
    assert asked == [5]
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    result = json.loads(output)
    assert result["ok"] is True
    assert result["rows"] == 5
    assert result["carriers"]["AA"]["spark"] == result["carriers"]["AA"]["pandas"]
    assert result["carriers"]["ZZ"]["name"] == "ZZ"
    assert result["counters"]["publish"]["sent"] == 5
    assert result["peak_memory_bytes"] == 2**30
    assert all(check["ok"] for check in result["checks"])


def test_scripts_see_what_differs(flown: Flown, capsys: pytest.CaptureFixture[str]) -> None:
    flown(spoiled())
    assert run_command(["demo", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is False
    assert [check["name"] for check in result["checks"] if not check["ok"]] == [
        "Spark and pandas agree",
        "every event is counted once",
    ]


def test_a_carrier_that_only_one_knows_has_no_figures_on_the_other_side(
    flown: Flown, capsys: pytest.CaptureFixture[str]
) -> None:
    flown(right_outcome(spark={}, peak_memory=0))
    assert run_command(["demo", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["carriers"]["AA"]["spark"] is None
    assert result["peak_memory_bytes"] is None
    flown(right_outcome(spark={}))
    assert run_command(["demo"]) == 1
    assert "in memory" in capsys.readouterr().out


def test_a_process_that_fails_is_named_and_its_last_words_are_shown(
    flown: Flown, capsys: pytest.CaptureFixture[str]
) -> None:
    flown(ProcessFailed("the publisher ended with exit status 1", "Traceback\nValueError: x"))
    assert run_command(["demo"]) == 1
    assert (
        capsys.readouterr().err.partition("/\n")[2]
        == "Traceback\nValueError: x\niris: the publisher ended with exit status 1\n"
    )


def test_what_is_not_installed_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise ConfigError("the demo needs pyspark: pip install 'iris-mesh[demo]'")

    monkeypatch.setattr("iris.demo.command.check_installed", missing)
    assert run_command(["demo"]) == 2
    assert capsys.readouterr().err == "iris: the demo needs pyspark: pip install 'iris-mesh[demo]'\n"


@pytest.mark.parametrize("rows", ["0", "336777", "x"])
def test_a_number_of_rows_that_is_not_there_is_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["demo", "--rows", rows]) == 2
    assert capsys.readouterr().err.count("\n") == 1
