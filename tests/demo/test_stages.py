"""Output that people see while the demo runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from iris.demo.display import open_stages


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=120, color_system=None), output


def test_where_nobody_looks_each_stage_is_one_line() -> None:
    where, output = console(terminal=False)
    with open_stages(where) as stages, stages.stage("Publish", total=2000, unit="flights") as stage:
        stage.reach(1000)
    assert output.getvalue().startswith("Publish: 2,000 flights in 0.")
    assert output.getvalue().count("\n") == 1


def test_a_person_sees_a_bar_for_each() -> None:
    where, output = console(terminal=True)
    with open_stages(where) as stages:
        with stages.stage("Ask", total=10, unit="hours"):
            pass
        with stages.stage("Send", total=2_000_000, unit="MB") as stage:
            stage.reach(1_000_000)
            assert stage.summary == "1.0 of 2.0 MB"
    text = output.getvalue()
    assert "Ask" in text
    assert "━" in text
    assert "10 hours" in text
    assert "2.0 of 2.0 MB" in text


def test_more_than_everything_is_everything() -> None:
    where, _ = console(terminal=False)
    with open_stages(where) as stages, stages.stage("Ask", total=10, unit="hours") as stage:
        stage.reach(4)
        assert stage.summary == "4 of 10 hours"
        stage.reach(25)
        assert stage.summary == "10 hours"


def test_what_cannot_be_counted_is_done_or_not() -> None:
    where, output = console(terminal=False)
    with open_stages(where) as stages, stages.stage("Start") as stage:
        assert stage.summary == ""
    assert output.getvalue().startswith("Start: done in 0.")


def test_the_time_of_each_stage_is_kept() -> None:
    where, _ = console(terminal=False)
    with open_stages(where) as stages:
        with stages.stage("One"):
            pass
        with pytest.raises(ValueError, match="bad"), stages.stage("Two"):
            raise ValueError("bad")
    assert stages.seconds.keys() == {"One"}
