"""Requests whose member is in doubt: idempotent ones go elsewhere if there is anybody, and the others stay."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.request.attempt import Attempt
from tests.support.calls import call_to
from tests.support.meshes import MeshNode, StaticPicker, open_meshes

ONE, TWO = NodeId("1" * 32), NodeId("2" * 32)


@pytest.mark.parametrize(
    ("idempotent", "members", "tried", "answered", "moves"),
    [
        (True, [ONE, TWO], {ONE}, False, True),
        (True, [ONE, TWO], {ONE, TWO}, False, False),
        (True, [ONE], {ONE}, False, False),
        (True, [], {ONE}, False, False),
        (True, None, {ONE}, False, True),  # one member was asked for: it ends there, and the asker decides
        (True, [ONE, TWO], {ONE}, True, False),
        (False, [ONE, TWO], {ONE}, False, False),
        (False, None, {ONE}, False, False),
    ],
)
def test_what_may_go_elsewhere(
    idempotent: bool, members: list[NodeId] | None, tried: set[NodeId], answered: bool, moves: bool
) -> None:
    picker = None if members is None else StaticPicker(members)
    waiter = Attempt(call_to(picker, idempotent=idempotent, tried=tried), 1, ONE, 0.0, picker=picker)
    if answered:
        waiter.outcome = kinds.Reply(1, b"")
    assert waiter.can_retry_elsewhere() is moves
    assert picker is None or picker.keys == [], "nobody was drawn for the question"


class Slow:
    """A member that answers with its name after a second."""

    def __init__(self, name: str) -> None:
        self.service = iris.Service("store")
        self.service.request(partial(self.serve, name))
        self.began = self.ended = 0

    async def serve(self, name: str, _: iris.Request) -> str:
        self.began += 1
        try:
            await trio.sleep(1)
        finally:
            self.ended += 1
        return name


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_member_in_doubt_keeps_what_nobody_else_can_do(
    autojump_clock: MockClock, idempotent: bool, others: bool
) -> None:
    first, second = Slow("first"), Slow("second")
    replies: list[object] = []
    async with open_meshes("shop", "one", "two") as fleet, trio.open_nursery() as nursery:
        shop, one, two = fleet["shop"], fleet["one"], fleet["two"]

        async def serve(node: MeshNode, member: Slow, task_status: trio.TaskStatus[None]) -> None:
            async with node.serve(member.service):
                task_status.started()
                await trio.sleep_forever()

        async def ask() -> None:
            replies.append(await shop.request("store", b"", timeout=60, idempotent=idempotent))

        await nursery.start(serve, one, first)
        if others:
            await nursery.start(serve, two, second)
        nursery.start_soon(ask)
        await trio.sleep(0.5)
        shop.requests.peer_unreachable(two.id)  # it was not asked: that concerns nobody
        shop.requests.peer_unreachable(one.id)
        shop.requests.peer_unreachable(one.id)
        await trio.sleep(0.1)
        moves = idempotent and others
        assert (first.ended, second.began) == ((0, 1) if moves else (0, 0))  # it may be asked again
        await trio.sleep(2)
        assert replies == ["second" if moves else "first"]
        assert (first.began, first.ended) == (1, 1)
        assert (shop.requests.repeated, shop.requests.moved) == ((1, 1) if moves else (0, 0))
        nursery.cancel_scope.cancel()
