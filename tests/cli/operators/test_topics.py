"""``iris topics`` as people type it."""

from __future__ import annotations

import json

import trio

import iris
from tests.support.desk import Desk


def test_patterns_are_shown_with_who_subscribes_and_who_publishes(desk: Desk) -> None:
    async def listen(node: iris.Node) -> None:
        async with node.subscribe("orders.>"), node.subscribe_durable("orders.*"):
            await node.publish("lonely", 1)
            await trio.sleep_forever()

    desk.company = listen
    done = desk.run("topics", "--interval", "0.1")
    lines = [line.split("\t") for line in done.out.decode().splitlines()]
    assert lines[0] == [
        *("pattern", "group", "subscribers", "publishers", "delivered/s", "published/s", "waiting", "lost")
    ]
    assert [line[:4] for line in lines[1:]] == [
        ["lonely", "-", "0", "1"],
        ["orders.*", "-", "1, durable", "0"],
        ["orders.>", "-", "1", "0"],
    ]
    rows = [json.loads(line) for line in desk.run("topics", "--interval", "0.1", "-o", "json").out.splitlines()]
    assert [(row["pattern"], len(row["subscribers"])) for row in rows] == [
        ("lonely", 0),
        ("orders.*", 1),
        ("orders.>", 1),
    ]
    wide = desk.run("topics", "--interval", "0.1", "-o", "wide").out.decode().splitlines()
    assert len(wide[3].split("\t")[2]) == 32


def test_nobody_to_ask_is_one_line(desk: Desk) -> None:
    desk.members = 0
    assert desk.run("topics").complaint == "no other node was found"
