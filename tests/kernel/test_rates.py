"""Rates: as many messages and bytes each second as they say, with a second's worth at once."""

from __future__ import annotations

import pytest

from iris.kernel.errors import ConfigError
from iris.kernel.rates import Rates, check_rate


class Source:
    """Sends whenever it may."""

    def __init__(self, messages: float | None, octets: float | None = None) -> None:
        self.now = 100.0
        self.rates = Rates(messages, octets, self.now)

    def send(self, seconds: float, size: int = 0) -> int:
        """Send for some seconds; return how many messages went."""
        end, sent = self.now + seconds, 0
        while (at := self.now + self.rates.delay(self.now)) <= end:
            self.now = at
            self.rates.owe(1, size)
            sent += 1
        self.now = end
        return sent


def test_a_second_of_messages_goes_at_once_and_then_as_many_each_second() -> None:
    source = Source(10)
    assert source.send(0) == 10
    assert source.rates.delay(source.now) == pytest.approx(0.1)
    assert 99 <= source.send(10, size=1_000_000) <= 100
    source.now += 1000
    assert source.send(0) == 10, "what was not sent is not saved for longer than a second"


def test_a_rate_below_one_lets_one_go_now_and_then() -> None:
    source = Source(0.1)
    assert source.send(0) == 1
    assert source.rates.delay(source.now) == pytest.approx(10)
    assert source.send(100.001) == 10


def test_a_message_larger_than_the_bytes_of_a_second_goes_and_is_paid_for() -> None:
    source = Source(None, 1000)
    assert source.send(0, size=5000) == 1
    assert source.rates.delay(source.now) == pytest.approx(4)
    assert source.send(20.001, size=100) == pytest.approx(161, abs=1)


def test_of_two_rates_the_slower_one_counts() -> None:
    source = Source(10, 100)
    source.rates.owe(5, 300)
    assert source.rates.delay(source.now) == pytest.approx(2)
    source.rates.owe(100, 0)
    assert source.rates.delay(source.now) == pytest.approx(9.6)


def test_without_rates_nothing_waits() -> None:
    rates = Rates(None, None, 0)
    rates.owe(1_000_000, 1_000_000_000)
    assert rates.delay(0) == 0


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "many", True, 1e13])
def test_what_is_no_rate_is_refused(rate: object) -> None:
    with pytest.raises(ConfigError, match=r"rate is .*: use 0\.001 to 1e\+12 a second"):
        check_rate(rate, "rate")


def test_no_time_counts_twice_as_messages_arrive_before_the_last_look() -> None:
    """A frame of many is looked at after it arrived: each refusal looks at this moment, the next one at the arrival."""
    rates = Rates(10, None, 0.0)
    rates.owe(10, 0)
    gone = 0
    for step in range(1, 101):
        arrived = step / 100
        for _ in range(16):
            if rates.delay(arrived):
                rates.delay(arrived + 0.05)
            else:
                rates.owe(1, 0)
                gone += 1
    assert gone in (10, 11)
