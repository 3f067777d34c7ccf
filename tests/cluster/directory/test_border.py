"""Policy of gateways for what may cross the border of a site, as its nodes remember it."""

from __future__ import annotations

import pytest

from iris.cluster.directory.border import Border
from iris.kernel.errors import RemoteProtocolError
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from tests.support.messages import arrived

ONE, OTHER = NodeId("1" * 32), NodeId("2" * 32)


def lists(*clusters: str) -> kinds.Allowed:
    return kinds.Allowed(clusters, (), ())


def test_what_any_gateway_allows_may_be_asked_until_it_allows_it_no_more() -> None:
    border = Border()
    for step, (gateway, clusters, may) in enumerate(
        (
            (ONE, ("store",), True),
            (OTHER, ("shop",), True),
            (ONE, ("shop",), False),
            (OTHER, ("sto.*", "store"), True),
            (OTHER, (">",), True),
            (OTHER, (), False),
        )
    ):
        border.receive_untrusted(gateway, lists(*clusters))
        for _ in range(2):  # once found out, and once remembered
            assert border.may_ask("store") == may, step
    border.receive_untrusted(ONE, lists("store"))
    assert border.may_ask("store")
    border.forget(ONE)
    assert not border.may_ask("store")


def test_names_that_others_make_up_are_not_all_remembered() -> None:
    border = Border()
    border.receive_untrusted(ONE, lists("store"))
    for number in range(10_000):
        assert not border.may_ask(f"made-up-{number}")
    assert len(border._asked) <= 256
    assert border.may_ask("store")


@pytest.mark.parametrize(
    "field", [None, "store", (1,), ("x" * 300,), ("x",) * 2000, ("a..b",), ("a\x9b",), ("a\u202e",)]
)
def test_lists_that_are_none_change_nothing(field: object) -> None:
    border = Border()
    border.receive_untrusted(ONE, lists("store"))
    with pytest.raises(RemoteProtocolError):
        border.receive_untrusted(ONE, arrived(kinds.Allowed, field, (), ()))
    assert border.may_ask("store")
