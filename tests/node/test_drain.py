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

    @service.tunnel
    async def greet(tunnel: iris.Tunnel) -> None:
        await tunnel.send("hello")

    return service


async def _answers(node: iris.Node, times: int = 32) -> set[object]:
    return {await node.request("store") for _ in range(times)}


async def test_a_drained_member_gets_no_new_work_until_it_works_again(autojump_clock: object) -> None:
    async with (
        open_network() as network,
        network.open_parts("store") as (one, parts),
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
    assert parts.joined.drained == set()


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


async def test_what_ran_nowhere_waits_a_moment_for_who_replaces_the_last_member(autojump_clock: object) -> None:
    async with open_network() as network, network.open_node("app") as app, trio.open_nursery() as nursery:

        async def serve(answer: str, seconds: float) -> None:
            async with network.open_node("store") as node, node.join("store", _service(answer)):
                await app.wait_for("store")
                await trio.sleep(seconds)

        async def replace() -> None:
            await serve("one", 1)
            await trio.sleep(1)
            await serve("two", 10)

        nursery.start_soon(replace)
        await app.wait_for("store")
        assert await app.request("store") == "one"
        while app.members("store"):  # noqa: ASYNC110 -- on a virtual clock
            await trio.sleep(0.01)
        async with trio.open_nursery() as asking:
            asking.start_soon(_open, app)
            assert await app.request("store", timeout=5) == "two"
        while app.members("store"):  # noqa: ASYNC110 -- on a virtual clock
            await trio.sleep(0.1)
        began = trio.current_time()
        with pytest.raises(iris.NoSuchCluster):
            await app.request("store")
        assert 1.5 < trio.current_time() - began < 2.5
        with pytest.raises(iris.NoSuchCluster):
            await _open(app)
        assert trio.current_time() - began < 2.5, "not once more"


async def _open(app: iris.Node) -> None:
    async with app.open_tunnel("store", timeout=5) as tunnel:
        assert await tunnel.receive() == "hello"
