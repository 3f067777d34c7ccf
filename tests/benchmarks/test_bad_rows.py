"""The figures of payloads that do not fit are of batches in which as many do not fit as they say."""

from __future__ import annotations

import pytest

from benchmarks.bridge.bad_rows import measure


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("share", "unfit"), [(0.0, 0), (0.01, 3), (1.0, 300)])
def test_as_many_payloads_do_not_fit_as_are_wanted(share: float, unfit: int, packed: bool) -> None:
    taken, found = measure(300, share, packed=packed)
    assert taken > 0
    assert found == unfit
