"""Broken set-ups on real machines: ``iris doctor`` names each, and nothing else."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.broken_setups import SETUPS, Rehearsal, Setup, open_rehearsal, why_no_rehearsal
from tests.support.doctor_page import ROWS, fits

pytestmark = [pytest.mark.faults, pytest.mark.skipif(bool(why_no_rehearsal()), reason=why_no_rehearsal())]


@pytest.fixture
def here() -> Generator[Rehearsal]:
    with open_rehearsal() as rehearsal:
        yield rehearsal


def test_of_a_setup_in_order_all_is_said_to_be_ok(here: Rehearsal) -> None:
    here.serve()
    findings = here.examine()
    assert [finding for finding in findings if finding["level"] != "ok"] == []
    assert {"seed-ok", "clock-ok", "listen-ok", "lan-ok", "versions-ok"} <= {finding["code"] for finding in findings}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
def test_a_broken_setup_is_named(setup: Setup, here: Rehearsal) -> None:
    if setup.make.__name__ == "revoked_credential":  # the list is there before the member starts
        setup.make(here)
        here.serve()
    else:
        if setup.serves:
            here.serve()
        setup.make(here)
    findings = here.examine(prefix=setup.prefix)
    wrong = {finding["code"]: finding for finding in findings if finding["level"] != "ok"}
    assert set(wrong) == set(setup.codes), findings
    (row,) = [row for row in ROWS if row.symptom == setup.symptom]
    found = wrong[setup.codes[0]]
    assert len([finding for finding in findings if finding["level"] != "ok"]) == len(setup.codes), "each is said once"
    assert (found["level"], found["code"]) == (row.level, row.code)
    assert fits(row.cause, found["cause"]), (row.cause, found["cause"])
    assert fits(row.remedy, found["remedy"]), (row.remedy, found["remedy"])
