"""Disk of a machine that fails, and of one whose disk is full."""

from __future__ import annotations

import os

import pytest
import trio

import iris.testing
from iris.testing.faults import Crash, Fault, FullDisk, Schedule
from iris.testing.running import run_once

SIZE = 64 * 512


def written(power: bool, synchronize: bool) -> bytes:
    """Return what is in a file after a crash."""
    found = b""

    async def body(world: iris.testing.World) -> None:
        nonlocal found

        async def write() -> None:
            path = world.directory() / "file"
            if not path.exists():
                file = os.open(path, os.O_RDWR | os.O_CREAT)
                os.pwrite(file, b"x" * SIZE, 0)
                if synchronize:
                    os.fsync(file)
                os.close(file)
            await trio.sleep_forever()

        world.start("a", write)
        await world.wait_healed()
        found = (world.directory("a") / "file").read_bytes()

    run = run_once(body, Schedule(seed=1, seconds=30, faults=(Crash(at=5, lasting=1, host="a", power=power),)))
    assert run.error is None
    return found


def test_what_was_synchronized_is_there_and_the_rest_is_torn() -> None:
    assert written(power=True, synchronize=True) == b"x" * SIZE
    torn = written(power=True, synchronize=False)
    sectors = {torn[start : start + 512] for start in range(0, SIZE, 512)}
    assert sectors == {b"x" * 512, b"\0" * 512}


def test_a_killed_program_loses_nothing_that_it_wrote() -> None:
    assert written(power=False, synchronize=False) == b"x" * SIZE


def test_a_full_disk_takes_nothing_until_it_is_over() -> None:
    async def body(world: iris.testing.World) -> None:
        async def write() -> None:
            file = os.open(world.directory() / "file", os.O_RDWR | os.O_CREAT)
            await trio.sleep_until(6)
            with pytest.raises(OSError, match="No space left"):
                os.write(file, b"x")
            await trio.sleep_until(9)
            assert os.write(file, b"x") == 1
            os.close(file)

        world.start("a", write)
        await world.wait_healed()

    fault: Fault = FullDisk(at=5, lasting=2, host="a")
    run = run_once(body, Schedule(seed=1, seconds=30, faults=(fault,)))
    assert run.error is None, run.error
