"""Values that the types of messages refuse, no matter which peer sends them."""

from __future__ import annotations

import pytest

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.wire import kinds
from tests.support.messages import arrived


@pytest.mark.parametrize("number", [0, 1, 2**62])
def test_numbers_that_a_peer_may_send(number: int) -> None:
    assert arrived(kinds.Ping, number) == kinds.Ping(number)
    assert arrived(kinds.Confirmed, ((number, 0),)) == kinds.Confirmed(((number, 0),))


@pytest.mark.parametrize("number", [-1, 2**62 + 1, 2**63, 2**64 - 1, True, 1.0, None, "1"])
def test_any_other_number_is_the_peers_error(number: object) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed batch"):
        arrived(kinds.Ping, number)
    with pytest.raises(RemoteProtocolError, match="malformed batch"):
        arrived(kinds.Confirmed, ((0, number),))


def test_some_numbers_have_another_least_one() -> None:
    assert arrived(kinds.Failure, 1, "code", "text", -1).retry_after == -1
    with pytest.raises(RemoteProtocolError):
        arrived(kinds.EventRoute, 0, 0, False)


def test_every_kind_takes_one_byte_and_says_what_it_is_for() -> None:
    assert all(0 < kind < 128 for kind in kinds.BY_KIND)
    assert all(one.__doc__ for one in kinds.BY_KIND.values())
