"""The first tries: ``spark-submit`` to a standalone cluster, once, on this machine as busy as it is."""

from __future__ import annotations

import pytest

from benchmarks.bridge.first_tries import first_tries

pytestmark = pytest.mark.long


def test_a_program_that_is_submitted_to_a_cluster_works_the_first_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert first_tries(1, load=0) == 1
    assert "| first tries that worked | 1 of 1 | 1 of 1 |" in capsys.readouterr().out
