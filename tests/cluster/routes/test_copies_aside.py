"""Copies that wait for a route: in order, bounded for each publisher, realm and owner, and for a time."""

from __future__ import annotations

import math

from iris.cluster.routes.copies_aside import MAX_IN_ALL, MAX_OF_OWNER, MAX_OF_PUBLISHER, CopiesAside, Waiting
from iris.kernel.wire import kinds

EAR = bytes(16)
HALF = bytes(MAX_OF_PUBLISHER // 2 - 512)


def waiting(
    publisher: int, frame: bytes = b"frame", *, since: float = 0.0, owner: str = "shop", site: str = "us"
) -> Waiting:
    return Waiting(since, owner, EAR, kinds.Copy(16, site, publisher.to_bytes(16, "big"), (), frame))


def test_copies_for_a_site_are_returned_in_order_and_once() -> None:
    aside = CopiesAside()
    for number in range(3):
        assert aside.add("eu", waiting(1, b"%d" % number, since=float(number)))
    assert aside.add("ap", waiting(1))
    assert [each.copy.frame for each in aside.pop("eu", 1.0)] == [b"0", b"1"]
    assert [each.copy.frame for each in aside.pop("eu", math.inf)] == [b"2"]
    assert (aside.pop("eu", math.inf), aside.sites) == ([], ["ap"])
    assert aside.bytes == waiting(1).size
    aside.pop("ap", math.inf)
    assert (aside.bytes, aside.sites) == (0, [])


def test_neither_a_publisher_nor_a_realm_takes_the_room_of_others() -> None:
    aside = CopiesAside()
    assert [aside.add("eu", waiting(1, HALF)) for _ in range(3)] == [True, True, False]
    assert aside.add("f1/eu", waiting(1, HALF)), "another realm has room of its own"
    assert aside.add("eu", waiting(2, HALF))
    aside.pop("eu", math.inf)
    assert aside.add("eu", waiting(1, HALF)), "there is room again"


def test_a_gateway_of_another_site_takes_no_room_of_others_by_the_names_of_publishers() -> None:
    aside = CopiesAside()
    for number in range(MAX_OF_OWNER // (MAX_OF_PUBLISHER // 2)):
        assert aside.add("eu", waiting(number, HALF, owner="gateway", site="ap"))
    assert not aside.add("eu", waiting(99, HALF, owner="gateway", site="ap"))
    assert [aside.add("eu", waiting(1, HALF)) for _ in range(3)] == [True, True, False], "as if nobody had named it"


def test_all_publishers_together_have_a_bound() -> None:
    aside = CopiesAside()
    room = MAX_IN_ALL // (MAX_OF_PUBLISHER // 2)
    added = [aside.add("eu", waiting(number, HALF, owner=f"shop-{number}")) for number in range(room + 1)]
    assert added == [*[True] * room, False]
