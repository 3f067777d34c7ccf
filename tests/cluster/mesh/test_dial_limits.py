"""Limits on dials of a host in vain: a bucket for each pair of the peer that reported a node there, and the host."""

from __future__ import annotations

import pytest

from iris.cluster.mesh.dial_limits import _REMEMBERED, DialLimits


def taken(limits: DialLimits, teller: str, host: str, now: float = 0.0, *, attempts: int = 1000) -> int:
    return sum(limits.acquire(teller, host, now) for _ in range(attempts))


def test_so_many_dials_in_a_row_and_then_so_many_a_second() -> None:
    limits = DialLimits(10, 2.0)
    assert taken(limits, "cluster a", "192.0.2.1") == 10
    assert [taken(limits, "cluster a", "192.0.2.1", now) for now in (0.4, 0.5, 10.5, 3600.0)] == [0, 1, 10, 10]


def test_a_clock_that_goes_back_gives_nothing() -> None:
    limits = DialLimits(10, 2.0)
    assert taken(limits, "cluster a", "192.0.2.1", 100.0) == 10
    assert taken(limits, "cluster a", "192.0.2.1", 0.0) == 0


def test_a_dial_that_led_to_a_node_does_not_count() -> None:
    limits = DialLimits(10, 0.001)
    for _ in range(500):
        assert limits.acquire("cluster a", "192.0.2.1", 0.0)
        limits.give_back("cluster a", "192.0.2.1")
    limits.give_back("cluster a", "192.0.2.1")
    assert taken(limits, "cluster a", "192.0.2.1") == 10, "and there are never more than at the beginning"


@pytest.mark.parametrize(
    ("teller", "host", "shared"),
    [
        ("cluster a", "192.0.2.1", True),
        ("cluster b", "192.0.2.1", False),
        ("cluster a", "192.0.2.2", False),
        ("cluster a", "::ffff:192.0.2.1", True),
    ],
)
def test_one_teller_takes_nothing_of_another_and_one_host_nothing_of_another(
    teller: str, host: str, shared: bool
) -> None:
    limits = DialLimits(10, 0.001)
    taken(limits, "cluster a", "192.0.2.1")
    assert taken(limits, teller, host) == (0 if shared else 10)


def test_the_addresses_of_one_network_of_64_bits_are_one_host() -> None:
    limits = DialLimits(10, 0.001)
    assert sum(limits.acquire("cluster a", f"2001:db8::{number:x}", 0.0) for number in range(1, 100)) == 10


def test_hosts_are_forgotten_the_one_in_use_longest_ago_first() -> None:
    limits = DialLimits(1, 0.001)
    limits.acquire("cluster a", "victim", 0.0)
    for number in range(2 * _REMEMBERED):
        limits.acquire("cluster a", f"host-{number}", 0.0)
        assert not limits.acquire("cluster a", "victim", 0.0)
    assert len(limits._left) == _REMEMBERED
    limits.give_back("cluster a", "host-0")
    assert len(limits._left) == _REMEMBERED
