"""``iris books --watch`` beside a process that loses events: a line for each loss, until it is interrupted."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest
import trio

import iris
from tests.support.command import PATIENCE, Terminal, interrupt, open_terminal

_BEGUN = "losses of"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[Terminal]:
    with open_terminal() as opened:
        for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):  # this process is in the local realm of the terminal as well
            monkeypatch.setenv(name, opened.environment[name])
        yield opened


async def _lose(node: iris.Node, topic: str) -> int:
    """Lose events, because a subscription has room for one; return how many."""
    missed = 0
    async with node.subscribe(topic, limits=iris.SubscriptionLimits(events=1)) as subscription:
        for number in range(9):
            await node.publish(topic, number)
        async for event in subscription:
            missed += event.missed
            if event.payload == 8:
                break
    assert missed > 0
    return missed


async def _wait_begun(process: Any) -> None:
    with trio.fail_after(PATIENCE):
        while _BEGUN not in (await trio.to_thread.run_sync(process.stderr.readline)).decode():
            pass


async def _next_loss(process: Any) -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        line = await trio.to_thread.run_sync(process.stdout.readline)
    loss: dict[str, Any] = json.loads(line)
    return loss


async def test_each_loss_is_a_line_and_what_was_lost_before_is_none(terminal: Terminal) -> None:
    options = ("--watch", "--interval", "0.1", "--settle", "0")
    async with iris.open_node("shop") as shop:
        await _lose(shop, "meters.hall")
        with (
            terminal.started("books", "meters.>", *options, "-o", "json") as of_meters,
            terminal.started("books", "nobody.publishes.this", *options) as of_nothing,
            terminal.started("books", "meters.roof", *options) as of_roof,
        ):
            for process in (of_meters, of_nothing, of_roof):
                await _wait_begun(process)
            lost = await _lose(shop, "meters.hall")
            loss = await _next_loss(of_meters)
            assert loss == {
                "sender": shop.id, "pattern": "event", "name": "meters.hall", "receiver": shop.id,
                "reason": "dropped", "count": lost,
            }  # fmt: skip
            lost = await _lose(shop, "meters.roof")
            loss = await _next_loss(of_meters)
            assert (loss["name"], loss["reason"], loss["count"]) == ("meters.roof", "dropped", lost)
            assert of_roof.stdout is not None
            line = await trio.to_thread.run_sync(of_roof.stdout.readline)
            assert line.decode().split("\t")[1:] == [shop.id, "event", "meters.roof", shop.id, "dropped", f"{lost}\n"]
            for process in (of_meters, of_nothing, of_roof):
                assert await trio.to_thread.run_sync(interrupt, process) == 0
                assert process.stdout is not None
                assert process.stdout.read() == b"", "the losses of others, or some twice"


def test_a_pattern_that_is_none_is_refused_before_anybody_is_asked(terminal: Terminal) -> None:
    done = terminal.run("books", "meters..hall", "--watch")
    assert done.returncode != 0
    assert b"is no pattern of topics and clusters" in done.stderr
    assert done.stdout == b""
