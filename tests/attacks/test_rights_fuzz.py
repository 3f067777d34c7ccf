"""Every operation of a bridge with payloads that nobody means: an answer, no traceback, and others are served."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import IrisError
from iris.spark_bridge.protocol import PERMISSIONS
from iris.testing import open_network
from tests.support.bridge_members import open_member

TUNNELS = ("read", "stage", "take", "consume")

NAMES = (
    "topics", "regex", "group", "query", "cluster", "shard", "start", "end", "known", "timeout", "limit", "offsets",
    "skip", "timestamp", "before", "to", "of", "begin", "batch", "parts", "partition", "attempt", "lease", "attempts",
    "backoff", "dead", "held", "most", "at", "replay", "name", "holder", "ttl", "wait", "caller", "operation", "key",
    "fingerprint", "budget", "keep", "rerun", "begun", "outcome", "events", "machine", "commit", "taken", "done",
)  # fmt: skip


def values(shard: str) -> list[Any]:
    return [
        None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 0.0, -0.0, float("nan"), float("inf"),
        1e308, "",
        "q", "earliest", "latest", "jobs", "jobs.>", ">", "queue/jobs", "queue/", "g", "(", "a" * 1025, "\0",
        "\ud7ff", "é" * 200,
        b"", bytes(16), bytes(70_000), [], [None], ["jobs"], ["jobs.>", ">"], [[0, 0]], [[0, 0, b"rows"]], [0, 0],
        [0, 2**62],
        [0, 2**64 - 1], {}, {"time": 2**64 - 1}, {"time": -(2**63)}, {"offset": -1}, {"time": 0}, {"offset": 0},
        {shard: 0},
        {shard: 2**63 - 1}, {shard: -1}, {"x": 1}, {"": None}, shard, shard[:-1] + "g", "0@", "evil", "bridge",
        "f" * 32,
        [{"topic": "jobs", "key": None, "headers": {}, "data": b"x", "packed": False}],
        [{"topic": "jobs", "key": None, "headers": {}, "data": b"\xc1", "packed": True}],
        [["jobs"]] * 2000,
    ]  # fmt: skip


GOOD: dict[str, Any] = {
    "topics": ["jobs"], "group": "queue/jobs", "query": "q", "cluster": "evil", "start": 0, "end": 1, "known": {},
    "timeout": 0,
    "skip": 0, "timestamp": 0, "batch": 1, "parts": [], "partition": 0, "attempt": 1, "limit": 1, "lease": 1.0,
    "attempts": 1,
    "backoff": 0.0, "dead": "jobs.dead", "held": [], "most": 1, "name": "l", "holder": bytes(16), "ttl": 1.0,
    "wait": 0.0,
    "caller": "c", "operation": None, "key": "k", "fingerprint": bytes(16), "budget": 1.0, "keep": 60.0, "rerun": False,
    "begun": True, "outcome": b"", "machine": "m", "offsets": {},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_that_a_member_sends_to_a_bridge_is_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    rng = random.Random(seed)
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["jobs.>", "jobs"]) as bridge,
        network.open_node("evil") as evil,
        network.open_node("desk") as desk,
    ):
        await desk.publish_confirmed("jobs", b"x")
        (shard,) = bridge.states
        strange = values(shard)
        good = {**GOOD, "shard": shard}
        for operation in [*PERMISSIONS] * 12:
            payload: Any = dict(good)
            if operation in ("consume", "pin", "move") and rng.random() < 0.7:
                payload["start"] = rng.choice(strange)
            for name in rng.sample(NAMES, rng.choice((1, 1, 2, 3, 9))):
                payload[name] = rng.choice(strange)
            if rng.random() < 0.03:
                payload = rng.choice(strange)
            with trio.move_on_after(5) as late:
                try:
                    if operation in TUNNELS:
                        async with evil.open_tunnel("bridge", operation=operation) as tunnel:
                            await tunnel.send(payload)
                            for _ in range(rng.randrange(3)):
                                await tunnel.send(
                                    {rng.choice(NAMES): rng.choice(strange) for _ in range(rng.randrange(1, 3))}
                                )
                            with trio.move_on_after(0.05):
                                while True:
                                    await tunnel.receive()
                    else:
                        await evil.request("bridge", payload, operation=operation, timeout=4)
                except (IrisError, trio.EndOfChannel, UnicodeEncodeError):
                    pass
            assert not late.cancelled_caught, (operation, payload)
        bad = [r for r in caplog.records if r.levelno >= logging.ERROR or r.exc_info is not None]
        bad = [
            r
            for r in bad
            if ("handler" in r.getMessage() and r.levelno >= logging.WARNING) or r.levelno >= logging.ERROR
        ]
        assert not bad, [(r.getMessage(), r.exc_info) for r in bad[:3]]
        await desk.publish_confirmed("jobs", b"y")
        with trio.fail_after(20):
            assert (await desk.request("bridge", None, operation="status"))["stored"] == 2
