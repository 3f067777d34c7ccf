"""What a gateway lets through without being able to read it."""

from __future__ import annotations

import dataclasses

import pytest

from iris.cluster.site_messages import CLUSTER, TOPIC, Export
from iris.federation.checkpoint import IDLE, MAX_PAIRS, NO_SESSION, NOT_EXPORTED, TOO_FAST, Checkpoint
from iris.federation.policy import Policy
from iris.kernel.errors import ConfigError
from iris.kernel.ids import NodeId

NEAR, FAR, OPEN = NodeId("1" * 32), NodeId("2" * 32), NodeId("3" * 32)
FIRST, DATA = b"\1first", b"\4data"


def checkpoint(rate: float | None = None) -> Checkpoint:
    return Checkpoint(lambda node: node == OPEN, lambda site, node: site == "far" and node == OPEN, rate)


def test_a_session_begins_with_what_is_exported_only() -> None:
    border = checkpoint()
    assert border.inward(FAR, NEAR, FIRST, 0.0) == NOT_EXPORTED
    assert border.inward(FAR, NEAR, DATA, 0.0) == NO_SESSION
    assert border.inward(FAR, OPEN, FIRST, 0.0) is None
    assert border.outward(NEAR, "far", FAR, FIRST, 0.0) == NOT_EXPORTED
    assert border.outward(NEAR, "far", OPEN, FIRST, 0.0) is None
    assert border.refused == {NOT_EXPORTED: 2, NO_SESSION: 1}


def test_answers_pass_and_others_do_not() -> None:
    border = checkpoint()
    assert border.outward(NEAR, "far", OPEN, FIRST, 0.0) is None
    assert border.inward(OPEN, NEAR, DATA, 1.0) is None
    assert border.inward(FAR, NEAR, DATA, 1.0) == NO_SESSION


def test_a_pair_that_was_idle_begins_anew() -> None:
    border = checkpoint()
    border.outward(NEAR, "far", OPEN, FIRST, 0.0)
    assert border.inward(OPEN, NEAR, DATA, IDLE) is None
    assert border.inward(OPEN, NEAR, DATA, 2 * IDLE) is None
    assert border.inward(OPEN, NEAR, DATA, 3 * IDLE + 0.1) == NO_SESSION


def test_the_pair_that_was_idle_for_longest_makes_place() -> None:
    border = checkpoint()
    border.outward(NEAR, "far", OPEN, FIRST, 0.0)
    border.outward(FAR, "far", OPEN, FIRST, 0.0)
    border.inward(OPEN, NEAR, DATA, 1.0)
    for number in range(MAX_PAIRS - 1):
        border.outward(NodeId(f"{number:032x}"), "far", OPEN, FIRST, 2.0)
    assert border.inward(OPEN, NEAR, DATA, 3.0) is None
    assert border.inward(OPEN, FAR, DATA, 3.0) == NO_SESSION


def test_beyond_its_rate_a_neighbour_is_cut_and_others_are_not() -> None:
    border = checkpoint(rate=1_000)
    assert border.within_rate(NEAR, 900, 0.0)
    assert not border.within_rate(NEAR, 200, 0.0)
    assert border.within_rate(FAR, 900, 0.0)
    assert border.within_rate(NEAR, 200, 0.2)
    assert border.refused == {TOO_FAST: 1}
    taken = sum(100 for step in range(1_000) if border.within_rate(NEAR, 100, 1 + step / 100))
    assert 9_000 <= taken <= 11_500


def test_without_a_rate_everything_passes() -> None:
    border = checkpoint()
    assert all(border.within_rate(NEAR, 10**9, 0.0) for _ in range(100))


@pytest.mark.parametrize(
    ("allowed", "wanted", "taken"),
    [
        ("orders.>", "orders.created", True),
        ("orders.>", "orders.*", True),
        ("orders.>", "orders.>", True),
        ("orders.>", ">", False),
        ("orders.>", "*.created", False),
        ("orders.*", "orders.a.b", False),
        ("a.b", "a.*", False),
    ],
)
def test_a_subscription_is_served_if_all_that_it_matches_may_leave(allowed: str, wanted: str, taken: bool) -> None:
    assert Policy(export_topics=(allowed,)).may_import(Export(TOPIC, wanted, NEAR)) == taken
    assert Policy(import_topics=(allowed,)).may_want(wanted) == taken


def test_by_default_nothing_is_exported_and_everything_imported() -> None:
    policy = Policy()
    assert not policy.may_export("databases")
    assert policy.may_import(Export(CLUSTER, "databases", NEAR))
    assert not policy.may_import(Export(TOPIC, "orders.created", NEAR))


def test_lists_hold_names_and_patterns() -> None:
    policy = Policy(exports=("databases", "eu.>"), imports=("us.*",))
    assert [name for name in ("databases", "eu.a.b", "eu", "other") if policy.may_export(name)] == [
        "databases",
        "eu.a.b",
    ]
    assert policy.may_import(Export(CLUSTER, "us.store", NEAR))
    assert not policy.may_import(Export(CLUSTER, "store", NEAR))


@pytest.mark.parametrize("field", ["exports", "imports", "export_topics", "import_topics"])
def test_what_is_no_pattern_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        dataclasses.replace(Policy(), **{field: ("a..b",)})  # type: ignore[arg-type]
