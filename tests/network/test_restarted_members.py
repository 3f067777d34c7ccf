"""A rolling restart: members run by ``iris run`` are ended by SIGTERM and started again, in turn and under load.

Each of them leaves in order, so nothing fails: neither requests that may be repeated nor those that may not.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

import pytest
import trio

import iris
from tests.support.ledger_load import Load, numbers
from tests.support.processes import Child, open_realm

_PATIENCE: Final = 60.0
"""Seconds in which a process has to be up, or to have ended."""


def _members(directory: Path, count: int) -> list[Child]:
    command = [sys.executable, "-m", "iris", "run", "tests.support.programs.restarted:ledger"]
    environment = {"IRIS_LEDGER": str(directory / "ledger"), "PYTHONUNBUFFERED": "1"}
    return [
        Child(command, ready=" serves ledger at ", log=directory / f"{number}.txt", environment=environment)
        for number in range(count)
    ]


@pytest.mark.parametrize(("members", "restarts"), [(2, 1), pytest.param(4, 5, marks=pytest.mark.long)])
async def test_no_request_fails_when_members_are_restarted_by_sigterm_one_after_the_other(
    members: int, restarts: int
) -> None:
    statuses: list[int | None] = []
    with open_realm() as directory:
        processes = _members(directory, members)
        try:
            async with iris.open_node() as node, trio.open_nursery() as nursery:
                for process in processes:
                    process.launch()
                await node.wait_for("ledger", members=members, timeout=_PATIENCE)
                load = Load(node)
                nursery.start_soon(load.run)
                for process in processes * restarts:
                    statuses.append(await trio.to_thread.run_sync(process.end, signal.SIGTERM))
                    process.launch()
                    await node.wait_for("ledger", members=members, timeout=_PATIENCE)
                load.over = True
        finally:
            for process in processes:
                process.end()
        ran = numbers(directory)
    assert load.failed == {}
    assert statuses == [0] * (members * restarts)
    assert [number for number in load.plain if ran[number] > 1] == []
    assert [number for number in load.replied if not ran[number]] == [], "they have a reply and did not run"
    assert len(load.plain) > 50
    assert len(load.replied) - len(load.plain) > 50
