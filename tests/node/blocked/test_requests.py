"""Requests that block their members, and what members say: nothing real here but the messages."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.names import NodeId
from iris.kernel.wire import kinds
from iris.patterns.request.blocked import BlockedMembers, described
from tests.support.meshes import MeshNode, open_meshes

ONE = NodeId("1" * 32)


def said(number: int = 0, *, over: bool = False) -> kinds.Blocked:
    return kinds.Blocked(number, "store", "write", "store.py:12 in write", 600, over)


def test_what_a_member_says_is_logged_now_and_then() -> None:
    blocked = BlockedMembers()
    assert blocked.receive(ONE, said(), 0.0)
    assert blocked.now == {ONE: said()}
    assert not blocked.receive(ONE, said(), 1.0), "it can say so as often as it likes"
    assert blocked.receive(ONE, said(over=True), 2.0), "the end of what was logged"
    assert blocked.now == {}
    assert not blocked.receive(ONE, said(over=True), 3.0)
    assert blocked.receive(ONE, said(), 11.0)


def test_members_are_remembered_up_to_a_bound() -> None:
    blocked = BlockedMembers()
    for number in range(2000):
        blocked.receive(NodeId(f"{number:032x}"), said(), 0.0)
    assert len(blocked.now) == 1024


def test_what_is_said_of_code_that_is_no_handler() -> None:
    message = kinds.Blocked(0, "", None, "main.py:3 in main", 2100, False)
    assert described(message) == (
        "is blocked, not dead: code of its program stands at main.py:3 in main, for 2.1 s so far"
    )


async def test_a_request_of_which_two_members_die_that_it_had_blocked_goes_no_further(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    service, asked = iris.Service("store"), list[NodeId]()
    failures: list[iris.MemberLost] = []

    async with open_meshes("shop", "one", "two", "three") as fleet, trio.open_nursery() as nursery:
        shop, members = fleet["shop"], [fleet[name] for name in ("one", "two", "three")]

        @service.request
        async def write(_: iris.Request) -> None:
            await trio.sleep_forever()

        async def serve(node: MeshNode, task_status: trio.TaskStatus[None]) -> None:
            async with node.serve(service):
                task_status.started()
                await trio.sleep_forever()

        async def ask() -> None:
            with pytest.raises(iris.MemberLost) as lost:
                await shop.request("store", b"", timeout=60, idempotent=True)
            failures.append(lost.value)

        async def blocked_by_the_request() -> MeshNode:
            """Wait until a member has the request, and have that say that it is blocked by it."""
            await trio.sleep(0.1)
            (member,) = [node for node in members if node.serving.in_progress and node.id not in asked]
            (job,) = member.serving.in_progress
            asked.append(member.id)
            member.mesh.post(shop.id, said(job.identifier), 0)
            await trio.sleep(0.1)
            return member

        for member in members:
            await nursery.start(serve, member)
        nursery.start_soon(ask)
        shop.requests.peer_unreachable((await blocked_by_the_request()).id)
        second = await blocked_by_the_request()
        shop.requests.peer_unreachable(second.id)
        await trio.sleep(0.1)
        assert len(asked) == 2
        assert failures == []
        shop.mesh.drop(second.id, "it is gone")
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    (failure,) = failures
    assert "second member that stood still" in str(failure)
    assert "no further member was asked" in str(failure)
    assert any(record.levelno == logging.WARNING for record in caplog.records if "not dead" in record.getMessage())
