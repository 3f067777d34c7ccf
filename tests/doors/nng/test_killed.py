"""The door for nng as a program: its clients survive it, go on with the next one, and see what they have lost."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pynng
import pytest

import iris.aio
from iris.doors import grant
from tests.doors.nng.place import PUBLIC, left_in
from tests.support.async_tests import run_in_realm
from tests.support.doors import Counted, greeters


@asynccontextmanager
async def open_door(tmp_path: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run ``iris door``, and yield when it has printed its addresses."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "iris", "door", "--tokens", str(tmp_path / "tokens")),
        *("--nng", f"ipc://{tmp_path}/door", "--nng-client", "tools"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        said = b""
        while f"sub ipc://{tmp_path}/door.sub".encode() not in said:
            line = await process.stdout.readline()
            assert line, said.decode()
            said += line
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_clients_of_a_door_that_is_killed_go_on_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[int] = []
    runs: list[str] = []
    pushed: set[int] = set()

    def base(protocol: str) -> str:
        return f"ipc://{tmp_path}/door.{protocol}"

    async def ask(number: int) -> None:
        with pynng.Req0(recv_max_size=1 << 20, recv_timeout=60_000) as socket:
            socket.resend_time = 1000  # it asks again as soon as it is connected, too
            socket.dial(base("req"), block=True)
            while True:
                await socket.asend(b"greeters json operation=square\n%d" % number)
                assert await socket.arecv() == b"200 json\n%d" % (number * number)
                answered.append(number)

    async def follow(socket: pynng.Socket) -> None:
        last = 0
        while True:
            line, _, _ = (await socket.arecv()).partition(b"\n")
            assert line.startswith(b"ticks json id=")
            run, _, number = line.split()[2].partition(b"=")[2].decode().partition("-")
            if not runs or run != runs[-1]:
                runs.append(run)
            else:
                assert int(number) > last  # more than one more, where this test was too slow to read
            last = int(number)

    async def publish(node: iris.aio.Node) -> None:
        number = 0
        while True:
            await node.publish("ticks", number)
            number += 1
            await asyncio.sleep(0.001)

    async def push(socket: pynng.Socket) -> None:
        number = 0
        while True:
            await socket.asend(b"pushed json\n%d" % number)
            number += 1
            await asyncio.sleep(0.001)

    async def hear(node: iris.aio.Node) -> None:
        async with node.subscribe("pushed") as events:
            async for event in events:
                pushed.add(event.payload)

    async def until_all_go_on(runs_by_then: int) -> None:
        before = len(answered), max(pushed, default=-1)
        while len(answered) < before[0] + 50 or max(pushed, default=-1) < before[1] + 20 or len(runs) < runs_by_then:
            await asyncio.sleep(0.01)

    async def main() -> None:
        grant(tmp_path / "tokens", "tools", **PUBLIC)
        async with (
            iris.aio.open_node("greeters") as member,
            member.join("greeters", greeters(Counted())),
            asyncio.TaskGroup() as tasks,
        ):
            with (
                pynng.Sub0(recv_max_size=1 << 20, recv_buffer_size=8192) as sub,
                pynng.Push0(recv_max_size=1 << 20) as pushing,
                pynng.Surveyor0(recv_max_size=1 << 20, survey_time=5000) as surveyor,
            ):
                working: list[asyncio.Task[None]] = []
                async with open_door(tmp_path) as door:
                    sub.subscribe(b"ticks ")
                    for socket, protocol in ((sub, "sub"), (pushing, "push"), (surveyor, "surveyor")):
                        socket.dial(base(protocol), block=True)
                    works = [follow(sub), publish(member), push(pushing), hear(member), *map(ask, range(8))]
                    working = [tasks.create_task(work) for work in works]
                    await until_all_go_on(1)
                    door.kill()
                await surveyor.asend(b"greeters")
                with pytest.raises((pynng.Timeout, pynng.BadState)):
                    await surveyor.arecv()
                async with open_door(tmp_path) as door:
                    await until_all_go_on(2)
                    while not surveyor.pipes:  # a survey goes to those who are connected, and does not wait for others
                        await asyncio.sleep(0.01)
                    await surveyor.asend(b"greeters timeout=4")
                    assert (await surveyor.arecv()).startswith(b"200 json")
                    door.terminate()
                    assert await door.wait() == 0
                assert not left_in(tmp_path)
                for task in working:
                    task.cancel()
                await asyncio.wait(working)

    run_in_realm(tmp_path, monkeypatch, main)
    assert len(runs) == 2
