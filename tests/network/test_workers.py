"""``iris run --workers``: workers are killed, and replaced by SIGHUP, under load.

Who is killed loses nothing that may be repeated.  Who is replaced leaves in order, so nothing fails at all.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import trio

import iris
from tests.support.ledger_load import Load, numbers
from tests.support.ports import free_port
from tests.support.processes import Child, children, open_realm

_PATIENCE = 60.0


def _log(directory: Path) -> Path:
    return directory / "log.txt"


def _supervisor(directory: Path, program: str, count: int, metrics: int) -> Child:
    options = ("--workers", str(count), "--metrics", str(metrics))
    command = [sys.executable, "-m", "iris", "run", f"tests.support.programs.{program}:ledger", *options]
    environment = {"IRIS_LEDGER": str(directory / "ledger"), "PYTHONUNBUFFERED": "1"}
    ready = f"{count} {'worker serves' if count == 1 else 'workers serve'}"
    return Child(command, ready=ready, log=_log(directory), environment=environment)


async def _wait_said(directory: Path, text: str, times: int) -> None:
    with trio.fail_after(_PATIENCE):
        while _log(directory).read_text().count(text) < times:  # noqa: ASYNC110 -- it is another process
            await trio.sleep(0.02)


@pytest.mark.parametrize(
    ("program", "count", "rolls", "kills"),
    [
        ("restarted_asyncio", 1, 1, 0),
        pytest.param("restarted", 1, 8, 0, marks=pytest.mark.long),
        pytest.param("restarted", 2, 4, 8, marks=pytest.mark.long),
        pytest.param("restarted_asyncio", 2, 4, 8, marks=pytest.mark.long),
    ],
)
async def test_nothing_fails_when_workers_are_replaced_and_nothing_idempotent_when_they_are_killed(
    program: str, count: int, rolls: int, kills: int
) -> None:
    with open_realm() as directory:
        metrics = free_port()
        supervisor = _supervisor(directory, program, count, metrics)
        try:
            async with iris.open_node() as node:
                await trio.to_thread.run_sync(supervisor.start)
                await node.wait_for("ledger", members=count, timeout=_PATIENCE)
                rolled, killed = Load(node), Load(node, first=1 << 32, only_idempotent=True)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(rolled.run)
                    for number in range(1, rolls + 1):
                        supervisor.send(signal.SIGHUP)
                        await _wait_said(directory, " replaced", number)
                        await _wait_said(directory, f"metrics at http://127.0.0.1:{metrics}/metrics", number + 1)
                    rolled.over = True
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(killed.run)
                    for number in range(1, kills + 1):
                        os.kill(children(supervisor.pid)[number % count], signal.SIGKILL)
                        await _wait_said(directory, " serves ledger at ", count * (1 + rolls) + number)
                    killed.over = True
            assert await trio.to_thread.run_sync(supervisor.end, signal.SIGTERM) == 0
        finally:
            supervisor.end()
        ran = numbers(directory)
    assert (rolled.failed, killed.failed) == ({}, {})
    assert [number for number in rolled.plain if ran[number] > 1] == []
    assert len(rolled.plain) > 50
    assert len(killed.replied) >= 50 * kills
