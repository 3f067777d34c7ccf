"""Slow joiners: a node subscribes, and what another one publishes right after that must arrive."""

from __future__ import annotations

from typing import Any

import trio

import iris
from benchmarks.streams.nodes import LOOPBACK, tcp_address
from benchmarks.streams.processes import open_run, say
from benchmarks.streams.table import heading, row


async def _both(task: dict[str, Any]) -> None:
    """Two nodes in one process, so that nothing lies between the subscription and the event; the network is real."""
    lost = 0
    async with (
        iris.open_node(listen=LOOPBACK) as subscriber,
        iris.open_node(listen=LOOPBACK, seeds=[tcp_address(subscriber)]) as publisher,
    ):
        for trial in range(task["trials"]):
            topic = f"joiner.{trial}"
            async with subscriber.subscribe(topic) as events:
                await publisher.publish(topic, b"first")
                with trio.move_on_after(5):
                    if (await anext(events)).payload == b"first":
                        continue
                lost += 1
    say(lost=lost)


ROLES = {"both": _both}


def conduct(*, quick: bool) -> None:
    """Subscribe and publish many times."""
    trials = 200 if quick else 10_000
    heading("Slow joiner: subscribe on one node, publish on another right after", "trials", "lost")
    with open_run() as run:
        lost = run.start("joiner", "both", trials=trials).hear("lost", 1800)
    row(f"{trials:,}", str(lost))
    if lost:
        raise SystemExit(f"joiner: {lost} events were lost")
