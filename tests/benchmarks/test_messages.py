"""Made-up messages have the form of messages: decoders take them, so that they come to the receivers."""

from __future__ import annotations

import random

import pytest

from iris.kernel.wire import kinds
from tests.support.messages import arrived, fields_of, made_up


@pytest.mark.parametrize("kind", kinds.BY_KIND.values())
def test_what_is_made_up_is_taken_by_the_decoder(kind: type[kinds.Message]) -> None:
    rng = random.Random(1)
    seen = {repr(fields_of(arrived(kind, *made_up(kind, rng)))) for _ in range(200)}
    assert len(seen) > 1 or not kind.__struct_fields__
