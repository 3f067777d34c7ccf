"""Drain: operators may have a member accept no new work, and work again."""

from __future__ import annotations

import pytest
import trio

import iris
from iris.node.operators import order_drain, unready
from iris.security.identity import Rights
from iris.testing import open_network


def _service(answer: str, seconds: float = 0.0) -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def get(request: iris.Request) -> object:
        await trio.sleep(seconds)
        return answer

    return service


async def _answers(node: iris.Node, times: int = 32) -> set[object]:
    return {await node.request("store") for _ in range(times)}


async def test_a_drained_member_gets_no_new_work_until_it_works_again(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as one,
        network.open_node("store") as two,
        network.open_node("app") as app,
        network.open_node("operator") as operator,
        one.join("store", _service("one")),
        two.join("store", _service("two")),
    ):
        await app.wait_for("store", 2)
        await trio.sleep(1)
        assert await _answers(app) == {"one", "two"}
        await order_drain(operator, one.id, "store", draining=True)
        await order_drain(operator, one.id, "store", draining=True)
        await trio.sleep(0.1)
        assert unready(one, member=True) == "draining"
        assert {member.node: member.status for member in app.members("store")} == {one.id: "draining", two.id: "alive"}
        assert await _answers(app) == {"two"}
        await order_drain(operator, one.id, "store", draining=False)
        await trio.sleep(0.1)
        assert unready(one, member=True) is None
        assert await _answers(app) == {"one", "two"}
    assert one._joined.drained == set()


async def test_what_runs_at_a_drained_member_is_finished(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as one,
        network.open_node("app") as app,
        one.join("store", _service("done", seconds=2)),
    ):
        await app.wait_for("store")

        async def drain_later() -> None:
            await trio.sleep(1)
            await order_drain(app, one.id, "store", draining=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain_later)
            assert await app.request("store") == "done"
        with pytest.raises(iris.IrisError):
            await app.request("store")


@pytest.mark.parametrize(
    ("serves", "may"),
    [(("iris.nodes",), False), (("iris.*",), False), (("iris.nodes.drain",), True), (("iris.>",), True)],
)
async def test_only_a_certificate_with_the_right_drains(
    serves: tuple[str, ...], may: bool, autojump_clock: object
) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        member.join("store", _service("one")),
    ):
        network.credential("operator", Rights(serves=serves))
        async with network.open_node("operator") as operator:
            await trio.sleep(1)
            if may:
                await order_drain(operator, member.id, "store", draining=True)
            else:
                with pytest.raises(iris.NotAllowed):
                    await order_drain(operator, member.id, "store", draining=True)
            assert (unready(member, member=True) == "draining") is may


async def test_a_member_that_leaves_is_not_called_back(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("app") as app,
        trio.open_nursery() as nursery,
    ):
        async with member.join("store", _service("done", seconds=3)):
            await app.wait_for("store")
            await order_drain(app, member.id, "store", draining=True)
            await order_drain(app, member.id, "store", draining=False)
            await trio.sleep(0.1)
            nursery.start_soon(app.request, "store")
            await trio.sleep(0.1)

            async def call_back() -> None:
                await trio.sleep(0.5)
                with pytest.raises(iris.RemoteError, match="leaving"):
                    await order_drain(app, member.id, "store", draining=False)

            nursery.start_soon(call_back)
        with pytest.raises(iris.RemoteError, match="not_a_member"):
            await order_drain(app, member.id, "store", draining=True)


@pytest.mark.parametrize("reserved", ["iris.nodes", "iris.nodes.drain", "nobody", ""])
async def test_only_members_of_clusters_are_drained(reserved: str, autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("store") as one, network.open_node("app") as app:
        await trio.sleep(1)
        with pytest.raises(iris.RemoteError, match="not_a_member"):
            await order_drain(app, one.id, reserved, draining=True)
