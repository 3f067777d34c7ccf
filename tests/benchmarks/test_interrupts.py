"""Ctrl-C at random moments; ``python -m benchmarks.interrupts`` sends a thousand."""

from __future__ import annotations

import pytest

from benchmarks import interrupts


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.long)])
def test_no_interruption_of_a_program_that_uses_everything_has_another_end(count: int) -> None:
    shown = interrupts.run(count, seed=3)
    assert shown.faults == []
    assert shown.outcomes["interrupted"] == count - 1
    assert shown.outcomes["command interrupted"] == 1


def test_what_ends_otherwise_is_found() -> None:
    """A program whose handler swallows the interruption and fails with another error."""
    interrupter = interrupts.Interrupter()

    async def fail() -> None:
        try:
            interrupter.arm(0)
            while True:
                pass
        except KeyboardInterrupt:
            raise RuntimeError("what should not have come") from None

    outcome, fault = interrupts.run_one(fail, None, interrupter)
    assert outcome == "RuntimeError"
    assert fault is not None
    assert "what should not have come" in fault
