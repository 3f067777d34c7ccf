"""Copies that wait for a route: in order, bounded for each publisher and realm, and for a time."""

from __future__ import annotations

import math

from iris.cluster.routes.copies_aside import MAX_IN_ALL, MAX_OF_PUBLISHER, CopiesAside
from iris.kernel.wire import kinds

EAR = bytes(16)
HALF = bytes(MAX_OF_PUBLISHER // 2 - 512)


def copy_of(publisher: int, frame: bytes = b"frame") -> kinds.Copy:
    return kinds.Copy(16, "us", publisher.to_bytes(16, "big"), (), frame)


def test_copies_for_a_site_are_returned_in_order_and_once() -> None:
    aside = CopiesAside()
    for number in range(3):
        assert aside.add("eu", EAR, copy_of(1, b"%d" % number), float(number))
    assert aside.add("ap", EAR, copy_of(1), 0.0)
    assert [copy.frame for _, copy in aside.take("eu", 1.0)] == [b"0", b"1"]
    assert [copy.frame for _, copy in aside.take("eu", math.inf)] == [b"2"]
    assert (aside.take("eu", math.inf), aside.sites) == ([], ["ap"])


def test_neither_a_publisher_nor_a_realm_takes_the_room_of_others() -> None:
    aside = CopiesAside()
    assert [aside.add("eu", EAR, copy_of(1, HALF), 0.0) for _ in range(3)] == [True, True, False]
    assert aside.add("f1/eu", EAR, copy_of(1, HALF), 0.0), "another realm has room of its own"
    assert aside.add("eu", EAR, copy_of(2, HALF), 0.0)
    aside.take("eu", math.inf)
    assert aside.add("eu", EAR, copy_of(1, HALF), 0.0), "there is room again"


def test_all_publishers_together_have_a_bound() -> None:
    aside = CopiesAside()
    room = MAX_IN_ALL // (MAX_OF_PUBLISHER // 2)
    assert [aside.add("eu", EAR, copy_of(number, HALF), 0.0) for number in range(room + 1)] == [*[True] * room, False]
