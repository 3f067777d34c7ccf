"""Limits on unauthenticated peers: rates, places, deadlines; whatever happens, the tables stay bounded."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.kernel.config import Config
from iris.kernel.slots import address_key
from iris.kernel.transport import network
from iris.security.channel import admission
from iris.security.channel.admission import Admission, UnauthenticatedConnections

CONFIG = Config()
SMALL = Config(half_open_handshakes=4, half_open_per_address=2, handshake_rate=10.0, handshake_burst=3)


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::1", "::/64"),
        ("not an address", "not an address"),
        ("x" * 1000, "x" * 64),
    ],
)
def test_an_address_is_what_strangers_cannot_choose_freely(host: str, key: str) -> None:
    assert address_key(host) == key


def test_the_defaults_are_those_of_the_security_document() -> None:
    limits = (CONFIG.half_open_handshakes, CONFIG.half_open_per_address, CONFIG.handshake_rate)
    assert (*limits, CONFIG.handshake_burst, CONFIG.handshake_timeout) == (1024, 32, 50.0, 100, 5.0)


# -- rate -----------------------------------------------------------------------------------------------------


def begin(doors: Admission, address: str | None, now: float) -> bool:
    """Begin a handshake that is over at once."""
    if not doors.may_begin(address, now):
        return False
    assert doors.open(1, address, now) == []
    doors.close(1)
    return True


def test_an_address_may_begin_a_burst_and_then_so_many_handshakes_a_second() -> None:
    refusals = Counter[str]()
    doors = Admission(SMALL, refusals)
    assert [begin(doors, "a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert refusals == {"handshake rate of one address": 2}
    assert not begin(doors, "a", 0.09)
    assert begin(doors, "a", 0.11)
    assert not begin(doors, "a", 0.11)
    assert [begin(doors, "a", 100.0) for _ in range(4)] == [True, True, True, False]


def test_junk_does_not_use_up_the_rate_of_an_address() -> None:
    doors = Admission(SMALL, Counter())
    assert all(doors.may_begin("a", 0.0) for _ in range(1000))
    assert begin(doors, "a", 0.0)


def test_other_addresses_have_a_rate_of_their_own() -> None:
    doors = Admission(SMALL, Counter())
    for _ in range(10):
        begin(doors, "a", 0.0)
    assert begin(doors, "b", 0.0)


def test_peers_that_the_operating_system_vouches_for_have_no_rate() -> None:
    doors = Admission(SMALL, Counter())
    assert all(begin(doors, None, 0.0) for _ in range(1000))


def test_the_table_of_rates_is_bounded() -> None:
    doors = Admission(SMALL, Counter())
    hosts = [f"10.{number}" for number in range(2 * admission.MAX_ADDRESSES)]
    for host in hosts:
        assert all(begin(doors, host, 0.0) for _ in range(SMALL.handshake_burst))
    # The newest have used their burst up; those that were forgotten have it again.
    may_begin = [doors.may_begin(host, 0.0) for host in reversed(hosts)]
    assert may_begin == [False] * admission.MAX_ADDRESSES + [True] * admission.MAX_ADDRESSES


def test_an_address_in_use_is_not_forgotten_for_others() -> None:
    doors = Admission(SMALL, Counter())
    for number in range(2 * admission.MAX_ADDRESSES):
        begin(doors, "flooder", 0.0)
        begin(doors, f"10.{number}", 0.0)
    assert not begin(doors, "flooder", 0.0)


# -- handshakes in progress -------------------------------------------------------------------------------------


def test_beyond_the_limit_of_an_address_its_oldest_handshake_makes_place() -> None:
    refusals = Counter[str]()
    doors = Admission(SMALL, refusals)
    assert [doors.open(index, "a", float(index)) for index in (1, 2, 3, 4)] == [[], [], [1], [2]]
    assert doors.open(9, "b", 5.0) == []
    assert doors.half_open == 3
    assert refusals == {"too many half-open handshakes": 2}


def test_beyond_the_limit_in_all_the_oldest_handshake_makes_place() -> None:
    doors = Admission(SMALL, Counter())
    dropped = [doors.open(index, f"address {index}", float(index)) for index in range(6)]
    assert dropped == [[], [], [], [], [0], [1]]
    assert doors.half_open == 4


def test_a_flood_from_one_address_takes_no_place_from_another() -> None:
    doors = Admission(CONFIG, Counter())
    doors.open(1, "honest", 0.0)
    dropped = [loser for index in range(2, 5000) for loser in doors.open(index, "flooder", 0.0)]
    assert 1 not in dropped
    assert doors.half_open == 1 + CONFIG.half_open_per_address


def test_peers_that_the_operating_system_vouches_for_share_the_limit_in_all_only() -> None:
    doors = Admission(CONFIG, Counter())
    for index in range(1, 2000):
        doors.open(index, None, 0.0)
    assert doors.half_open == CONFIG.half_open_handshakes


def test_closing_what_is_not_open_is_no_error() -> None:
    doors = Admission(CONFIG, Counter())
    doors.close(7)
    doors.open(7, "a", 0.0)
    doors.close(7)
    doors.close(7)
    assert doors.half_open == 0


def test_an_index_that_is_opened_again_counts_once() -> None:
    doors = Admission(SMALL, Counter())
    doors.open(7, "a", 0.0)
    assert doors.open(7, "b", 1.0) == []
    assert doors.half_open == 1


# -- replays, and dials for unauthenticated peers -------------------------------------------------------------


def test_a_first_frame_is_taken_as_often_as_honest_nodes_send_one() -> None:
    refusals = Counter[str]()
    doors = Admission(CONFIG, refusals)
    for _ in range(admission.FIRST_FRAMES):
        assert doors.is_fresh(b"key")
        doors.remember(b"key")
    assert not doors.is_fresh(b"key")
    assert doors.is_fresh(b"another key")
    assert refusals == {"first frame that was sent too often": 1}


def test_junk_with_a_key_that_nobody_has_shown_to_be_genuine_is_not_remembered() -> None:
    doors = Admission(CONFIG, Counter())
    assert all(doors.is_fresh(b"made up") for _ in range(100))
    for _ in range(admission.FIRST_FRAMES):
        doors.remember(b"genuine")
    assert all(doors.is_fresh(number.to_bytes(32)) for number in range(2 * admission.MAX_EPHEMERALS))
    assert not doors.is_fresh(b"genuine"), "none of them took its place"


def test_the_first_frames_that_are_remembered_are_bounded_and_those_in_use_stay() -> None:
    doors = Admission(CONFIG, Counter())
    for _ in range(admission.FIRST_FRAMES):
        doors.remember(b"replayed")
    keys = [number.to_bytes(32) for number in range(2 * admission.MAX_EPHEMERALS)]
    for key in keys:
        for _ in range(admission.FIRST_FRAMES):
            doors.remember(key)
        assert not doors.is_fresh(b"replayed")
    assert sum(not doors.is_fresh(key) for key in keys) == admission.MAX_EPHEMERALS - 1
    assert doors.is_fresh(keys[7])


def test_dials_for_strangers_have_few_places_and_the_oldest_makes_place() -> None:
    refusals = Counter[str]()
    doors = Admission(Config(dial_backs=3, half_open_per_address=4), refusals)
    assert [doors.dial_back(index, "a", 0.0) for index in (1, 2, 3)] == [[], [], [1]]
    assert [doors.dial_back(index, "b", 0.0) for index in (4, 5)] == [[], [2]]
    doors.dialled(3)
    assert doors.dial_back(6, "c", 0.0) == []
    assert doors.dialling == 3
    doors.close(6)
    assert doors.dialling == 2
    assert refusals == {"too many dials for strangers": 2}


def test_strangers_have_a_quarter_of_the_dials_that_a_node_can_make_at_one_time() -> None:
    assert 4 * CONFIG.dial_backs == network.DIALS


# -- connections ----------------------------------------------------------------------------------------------


def test_connections_without_a_genuine_frame_are_closed_in_time() -> None:
    refusals = Counter[str]()
    doors: UnauthenticatedConnections[str] = UnauthenticatedConnections(CONFIG, refusals)
    doors.open("silent", "a", 0.0)
    doors.open("honest", "a", 0.0)
    doors.open("gone", "b", 0.0)
    doors.authenticate("honest")
    doors.close("gone")
    assert len(doors.waiting) == 1
    assert doors.deadline == 5.0
    assert doors.expire(5.0) == ["silent"]
    assert refusals == {"no genuine frame in time": 1}
    assert doors.deadline == math.inf


def test_2500_strangers_from_one_address_leave_a_place_for_the_honest_one_there() -> None:
    """It needs its place for the milliseconds of a handshake; a flooder would have to come 24 times in them."""
    refusals = Counter[str]()
    doors: UnauthenticatedConnections[int] = UnauthenticatedConnections(CONFIG, refusals)
    for number in range(2500):
        doors.open(number, "127.0.0.1", number * 0.001)
    assert len(doors.waiting) == CONFIG.half_open_per_address * 3 // 4
    doors.open(9999, "127.0.0.1", 2.5)
    closed = [loser for number in range(3000, 3010) for loser in doors.open(number, "127.0.0.1", 2.51)]
    assert 9999 not in closed
    doors.authenticate(9999)
    closed += [loser for number in range(4000, 5000) for loser in doors.open(number, "127.0.0.1", 2.6)]
    assert 9999 not in closed
    assert refusals["too many connections"] >= 2500 - CONFIG.half_open_per_address * 3 // 4


ADDRESSES = ("a", "b", "c", None)


@given(st.integers(0, 2**32))
def test_after_any_sequence_of_events_the_tables_agree_with_a_plain_model(seed: int) -> None:
    rng = random.Random(seed)
    doors: UnauthenticatedConnections[int] = UnauthenticatedConnections(SMALL, Counter())
    model: dict[int, tuple[str | None, float]] = {}
    now = 0.0
    for _ in range(200):
        now += rng.random() * 0.3
        key = rng.randrange(12)
        match rng.randrange(4):
            case 0 | 1:
                address = rng.choice(ADDRESSES)
                model.pop(key, None)
                losers = doors.open(key, address, now)
                for loser in losers:
                    del model[loser]
                model[key] = (address, now + SMALL.handshake_timeout)
                assert key not in losers
            case 2:
                doors.close(key)
                model.pop(key, None)
            case _:
                expired = doors.expire(now)
                assert sorted(expired) == sorted(key for key, (_, end) in model.items() if end <= now)
                for gone in expired:
                    del model[gone]
        assert len(doors.waiting) == len(model) <= SMALL.half_open_handshakes
        assert doors.deadline == min((end for _, end in model.values()), default=math.inf)
        for address in ADDRESSES[:3]:
            assert sum(1 for other, _ in model.values() if other == address) <= SMALL.half_open_per_address
