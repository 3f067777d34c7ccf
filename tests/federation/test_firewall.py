"""Frames that a gateway passes without being able to read them."""

from __future__ import annotations

import pytest
from msgspec import structs

from iris.cluster.directory.messages import CLUSTER, TOPIC, Export
from iris.federation.firewall import NOT_EXPORTED, TOO_FAST, Firewall
from iris.federation.policy import Policy
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId

NEAR, FAR, OPEN = NodeId("1" * 32), NodeId("2" * 32), NodeId("3" * 32)
FIRST = b"\1first"


class Exports:
    """Exports of one node of this site to all others, and of one of another site."""

    def is_exported(self, node: NodeId, site: str) -> bool:
        return bool(site) and node == OPEN

    def offers(self, site: str, node: NodeId) -> bool:
        return site == "far" and node == OPEN


def checkpoint(rate: float | None = None) -> Firewall:
    exports = Exports()
    return Firewall(exports, exports, rate)


@pytest.mark.parametrize(
    ("near", "far", "passes"), [(NEAR, FAR, False), (OPEN, FAR, True), (NEAR, OPEN, True), (OPEN, OPEN, True)]
)
def test_a_session_begins_if_one_of_its_ends_is_exported(near: NodeId, far: NodeId, passes: bool) -> None:
    border = checkpoint()
    assert border.refusal(near, "far", far, FIRST) == (None if passes else NOT_EXPORTED)
    assert border.refused == ({} if passes else {NOT_EXPORTED: 1})


def test_what_is_offered_at_one_site_is_not_at_another() -> None:
    assert checkpoint().refusal(NEAR, "elsewhere", OPEN, FIRST) == NOT_EXPORTED


@pytest.mark.parametrize("kind", [2, 3, 4, 5, 255])
def test_other_frames_pass_for_they_begin_nothing(kind: int) -> None:
    assert checkpoint().refusal(NEAR, "far", FAR, bytes((kind,)) + b"rest") is None
    assert checkpoint().refusal(NEAR, "far", FAR, b"") is None


def test_beyond_its_rate_a_neighbour_is_cut_and_others_are_not() -> None:
    border = checkpoint(rate=1_000)
    assert border.within_rate(NEAR, 900, 0.0)
    assert border.within_rate(NEAR, 200, 0.0)
    assert not border.within_rate(NEAR, 200, 0.0)
    assert border.within_rate(FAR, 900, 0.0)
    assert border.within_rate(NEAR, 200, 0.2)
    assert border.refused == {TOO_FAST: 1}
    taken = sum(100 for step in range(1_000) if border.within_rate(NEAR, 100, 1 + step / 100))
    assert 9_000 <= taken <= 11_500


def test_a_frame_that_is_larger_than_the_rate_passes_and_is_paid_back() -> None:
    border = checkpoint(rate=1_000)
    assert border.within_rate(NEAR, 5_000, 0.0)
    assert not border.within_rate(NEAR, 1, 3.9)
    assert border.within_rate(NEAR, 5_000, 4.5)
    passed = [at for at in range(10, 100) if border.within_rate(NEAR, 5_000, float(at))]
    assert 16 <= len(passed) <= 19


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
        structs.replace(Policy(), **{field: ("a..b",)})
