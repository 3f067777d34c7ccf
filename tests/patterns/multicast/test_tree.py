"""The tree over which one message reaches many: everybody once, and what its wire form refuses."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import encode_batch, kinds
from iris.patterns.multicast.tree import (
    MAX_BEHIND,
    Branch,
    Seen,
    arranged,
    behind_untrusted,
    branch,
    claim,
    divided,
    divided_by_site,
    is_current,
    relay_size,
)
from tests.support.messages import arrived, decoded

ORIGIN = NodeId("00" * 16)
SIGNATURE = bytes(64)
NOW = 1_800_000_000


def relay(**changes: Any) -> kinds.Relay:
    """Return a message with some fields changed."""
    return replace(kinds.Relay(bytes.fromhex(ORIGIN), 1, NOW, b"", b"body", SIGNATURE), **changes)


def nodes(count: int, seed: int = 1) -> list[NodeId]:
    random = Random(seed)
    return [NodeId(random.randbytes(16).hex()) for _ in range(count)]


def spread(receivers: list[NodeId], fan_out: int, gone: set[NodeId]) -> tuple[Counter[NodeId], int, int]:
    """Hand a message on until everybody has it; return how often each got it, the most sends of one node, and hops."""
    got: Counter[NodeId] = Counter()
    waiting = [(arranged(ORIGIN, receivers), 0)]
    most = hops = 0
    while waiting:
        behind, depth = waiting.pop()
        parts = divided(behind, fan_out)
        most = max(most, len(parts))
        for part in parts:
            chosen = branch(part, lambda node: node not in gone)
            if chosen is not None:
                got[chosen.head] += 1
                hops = max(hops, depth + 1)
                waiting.append((chosen.behind, depth + 1))
    return got, most, hops


@given(st.integers(0, 700), st.integers(1, 20), st.integers(0, 2**32))
def test_every_receiver_gets_the_message_once_and_nobody_sends_more_than_the_fan_out(
    count: int, fan_out: int, seed: int
) -> None:
    receivers = nodes(count, seed)
    got, most, _ = spread(receivers, fan_out, set())
    assert got == Counter(receivers)
    assert most <= max(fan_out, -(-count // (MAX_BEHIND + 1)))


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 2**32), st.floats(0, 1))
def test_whoever_cannot_be_reached_takes_nobody_along(count: int, fan_out: int, seed: int, share: float) -> None:
    receivers = nodes(count, seed)
    gone = {node for node in receivers if Random(node).random() < share}
    got, _, _ = spread(receivers, fan_out, gone)
    assert got == Counter(node for node in receivers if node not in gone)


@pytest.mark.parametrize(("count", "hops"), [(1, 1), (10, 1), (11, 2), (110, 2), (111, 3), (1_110, 3)])
def test_a_fan_out_of_ten_reaches_a_thousand_in_three_hops(count: int, hops: int) -> None:
    assert spread(nodes(count), 10, set())[2] == hops


def test_ten_thousand_receivers_fit_by_a_wider_tree() -> None:
    parts = divided(nodes(10_000), 10)
    assert len(parts) == 20
    assert max(map(len, parts)) <= MAX_BEHIND + 1


def test_the_order_is_the_same_for_one_origin_and_another_for_each() -> None:
    receivers = nodes(50)
    first = arranged(ORIGIN, receivers)
    assert first == arranged(ORIGIN, receivers[::-1])
    heads = {arranged(origin, receivers)[0] for origin in nodes(200, seed=2)}
    assert len(heads) > 30


def test_each_other_site_gets_the_message_once_and_nobody_hands_on_to_another_site() -> None:
    receivers = nodes(70)
    sites = {node: "abc"[index % 3] for index, node in enumerate(receivers)} | {ORIGIN: "a"}
    parts = divided_by_site(ORIGIN, receivers, 4, sites.__getitem__)
    assert Counter(node for part in parts for node in part) == Counter(receivers)
    assert [len({sites[node] for node in part}) for part in parts] == [1] * len(parts)
    assert Counter(sites[part[0]] for part in parts) == {"a": 4, "b": 1, "c": 1}


def test_nobody_hands_on_where_nobody_can_be_reached() -> None:
    receivers = nodes(3)
    assert branch(receivers, lambda _: False) is None
    assert branch((), lambda _: True) is None
    assert branch(receivers, lambda node: node == receivers[1]) == Branch(receivers[1], (receivers[0], receivers[2]))


def test_the_wire_form_comes_back_as_it_was() -> None:
    behind = nodes(3)
    message = relay(behind=b"".join(map(bytes.fromhex, behind)))
    (arrives,) = decoded(encode_batch([message]))
    assert arrives == message
    assert behind_untrusted(arrives) == behind
    assert relay_size(message) >= 3 * 16 + 4 + 64


def test_what_is_signed_names_origin_number_date_and_every_byte_of_the_body() -> None:
    claims = {
        claim(relay()),
        claim(relay(origin=b"another origin.."[:16])),
        claim(relay(number=2)),
        claim(relay(at=NOW + 1)),
        claim(relay(body=b"bodz")),
        claim(relay(body=b"")),
    }
    assert len(claims) == 6
    assert claim(relay(behind=bytes(32))) in claims, "who is behind is not signed"


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (1, b"short"), (1, "00" * 16), (2, 0), (2, -1), (2, 2**63), (2, True), (2, 1.0),
        (3, -1), (3, 2**63), (3, 1.0), (3, True), (3, None),
        (4, b"x" * 15), (4, None),
        (4, bytes(16) * 2), (4, b"".join(number.to_bytes(16, "big") for number in range(MAX_BEHIND + 1))),
        (5, "text"), (5, None), (6, bytes(63)), (6, None),
    ],
)  # fmt: skip
def test_a_malformed_message_is_refused(at: int, value: object) -> None:
    fields: list[object] = [bytes(16), 1, NOW, b"", b"body", SIGNATURE]
    behind_untrusted(arrived(kinds.Relay, *fields))
    fields[at - 1] = value
    with pytest.raises(RemoteProtocolError):
        behind_untrusted(arrived(kinds.Relay, *fields))


@pytest.mark.parametrize(("late", "current"), [(0, True), (60, True), (60.1, False), (-60, True), (-60.1, False)])
def test_a_message_is_good_for_a_minute_before_and_after(late: float, current: bool) -> None:
    assert is_current(relay(), NOW + late) == current


@given(st.lists(st.integers(1, 6000), max_size=200))
def test_a_number_is_new_once(numbers: list[int]) -> None:
    seen = Seen()
    known: set[int] = set()
    for number in numbers:
        expected = number not in known and number > max(known, default=0) - 4096
        assert seen.add(number) == expected
        known.add(number)


def test_numbers_may_jump_and_overtake_each_other_within_the_window() -> None:
    seen = Seen()
    order = [2**62, 2**62 - 1, 2**62 - 4095, 2**62 + 5000, 2**62 + 905, 2**62 + 904]
    assert [seen.add(number) for number in order] == [True, True, True, True, True, False]


def test_a_number_far_behind_the_highest_is_a_repeat() -> None:
    seen = Seen()
    assert seen.add(2**62)
    assert not seen.add(1)
    assert seen.add(2**62 - 1)
