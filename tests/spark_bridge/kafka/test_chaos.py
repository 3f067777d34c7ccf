"""Three brokers and three members, which are killed again and again."""

from __future__ import annotations

import pytest

from tests.support.kafka_chaos import run


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("kafka")
def test_no_confirmed_event_is_lost_and_each_key_is_in_order_while_brokers_and_members_are_killed() -> None:
    outcome = run(1_000_000)
    assert outcome.brokers_killed >= 5
    assert outcome.members_killed >= 5
    assert (outcome.lost, outcome.disordered) == (0, 0)
