"""docs/reference/doctor.md names the broken set-ups that are rehearsed, and every finding that there is."""

from __future__ import annotations

import re
from typing import get_args

from iris.cli.operators.doctor import Code
from tests.support.broken_setups import SETUPS
from tests.support.doctor_page import PAGE, ROWS, fits


def test_the_table_has_the_set_ups_that_are_rehearsed() -> None:
    assert [(row.symptom, row.code) for row in ROWS] == [(one.symptom, one.codes[0]) for one in SETUPS.values()]


def test_the_page_has_each_of_them_with_its_finding() -> None:
    shown = re.findall(
        r"^\| `([a-z-]+)`( \(warning\))? \| ([^|]+) \|$", PAGE.partition("## Other findings")[0], re.MULTILINE
    )
    pairs = {(symptom, code, warning) for code, warning, symptoms in shown for symptom in symptoms.split("; or ")}
    assert pairs == {(row.symptom, row.code, " (warning)" if row.level == "warning" else "") for row in ROWS}
    assert f"{len(SETUPS)} of {len(SETUPS)} on" in PAGE


def test_every_finding_is_on_the_page_and_no_other() -> None:
    others = PAGE[PAGE.index("## Other findings") : PAGE.index("## File descriptors")]
    named = {row.code for row in ROWS} | set(re.findall(r"`([a-z]+-[a-z]+)`", others))
    assert named == set(get_args(Code))


def test_a_text_fits_what_the_page_shows_or_does_not() -> None:
    assert fits("tcp://…:7000: nobody listens there", "tcp://10.0.0.1:7000: nobody listens there")
    assert not fits("tcp://…:7000: nobody listens there", "tcp://10.0.0.1:7000: nobody is there")
