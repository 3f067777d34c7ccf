"""The processes of the demo (real ones): their output is read, and none is left, whatever happens."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from iris.demo.processes import Process, Processes, ProcessFailed, open_processes, read_table

SLEEPING = "import time\ntime.sleep(600)"

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this /proc")


@asynccontextmanager
async def opened(directory: Path) -> AsyncGenerator[Processes]:
    with trio.fail_after(60):
        async with open_processes(directory) as processes:
            yield processes


async def start(processes: Processes, directory: Path, program: str) -> Process:
    (directory / "program.py").write_text(program)
    return await processes.start("the program", ["program"])


def session_of(process: Process) -> list[int]:
    return [entry.pid for entry in read_table() if entry.session == process.session and not entry.is_dead]


async def test_a_process_that_ends_by_itself_ends_the_demo_and_its_last_words_are_kept(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as processes:
            program = "import sys\nprint('out of luck', file=sys.stderr)\nsys.exit(3)"
            await start(processes, tmp_path, program)
            await trio.sleep_forever()

    with pytest.raises(ProcessFailed, match="the program ended with exit status 3") as caught:
        await run()
    assert caught.value.tail == "out of luck"


async def test_a_signal_that_ends_a_process_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as processes:
            await start(processes, tmp_path, "import os\nos.kill(os.getpid(), 11)")
            await trio.sleep_forever()

    with pytest.raises(ProcessFailed, match="the program ended with SIGSEGV"):
        await run()


async def test_who_was_killed_on_purpose_is_no_failure(tmp_path: Path) -> None:
    async with opened(tmp_path) as processes:
        process = await start(processes, tmp_path, SLEEPING)
        await process.kill()
        assert process.status == -9
        await trio.testing.wait_all_tasks_blocked()


CHILDREN = """
import pathlib, subprocess, sys, time, signal, os
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = "import os, signal, time; signal.signal(15, 1); os.setpgid(0, 0); print(flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path("ready").touch()
{end}
"""


@linux
@pytest.mark.parametrize("end", ["time.sleep(600)", "os._exit(1)"])
async def test_what_a_process_has_started_ends_with_the_demo(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it listens to no signal, has left the process group, or its parent is gone: Spark's workers do that."""
    monkeypatch.setattr("iris.demo.processes._GOODBYE", 0.2)
    process: Process | None = None
    failure: ProcessFailed | None = None
    try:
        async with opened(tmp_path) as processes:
            process = await start(processes, tmp_path, CHILDREN.replace("{end}", end))
            while not (tmp_path / "ready").exists():  # noqa: ASYNC110 - another process makes it
                await trio.sleep(0.01)
            assert session_of(process)
            if end == "os._exit(1)":
                await trio.sleep_forever()
    except ProcessFailed as error:
        failure = error
    assert (failure is not None) == (end == "os._exit(1)")
    assert process is not None
    assert session_of(process) == []


@linux
async def test_cancelling_leaves_no_process(tmp_path: Path) -> None:
    started: list[Process] = []
    with trio.CancelScope() as scope:
        async with opened(tmp_path) as processes:
            started += [await start(processes, tmp_path, SLEEPING) for _ in range(2)]
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert [session_of(process) for process in started] == [[], []]
