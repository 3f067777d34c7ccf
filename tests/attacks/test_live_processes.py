"""Handlers in processes that do what no handler should: the next caller is served, and nothing is left."""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import pytest
import trio

import iris
from iris.patterns.service import process_pool
from iris.patterns.service.handlers import InProcess
from iris.patterns.service.process_pool import ProcessPool
from tests.support.hostile_handlers import look, make_hostile
from tests.support.stages import open_stage
from tests.support.supervision import is_running
from tests.support.waiting import wait_until

ONE = iris.Limits(concurrency=1)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def wait_gone(pid: int) -> None:
    await wait_until(lambda: not is_running(pid))


async def test_errors_and_replies_that_cannot_cross_are_answers_and_the_process_goes_on() -> None:
    async with open_stage() as stage:
        member, shop = await stage.pair(make_hostile(), limits=ONE)
        ask = partial(shop.request, "hostile", timeout=30)
        pid = (await ask(operation="look"))[0]
        ways = {
            "huge": "ValueError: xxx", "unspeakable": "Unspeakable without a text", "unpicklable": "ValueError: (<",
            "surrogates": r"ValueError: \\ud800\\udcff", "name": "NNN", "chain": "ValueError: 99", "group": "several",
            "exit": "GeneratorExit", "function": "function", "itself": "", "large": "",
        }  # fmt: skip
        for way, text in ways.items():
            with pytest.raises(iris.RemoteError) as raised:
                await ask(way, operation="fail_by")
            assert text.replace("\\\\", "\\") in raised.value.message, way
            assert raised.value.code != "process_died", way
            assert len(raised.value.message) <= 1024, way
        with pytest.raises(iris.RemoteError, match="ValueError: no"):
            await ask(operation="fail_in_a_file_that_is_no_text")
        assert await ask("x", operation="look") == [pid, "x"]
        service = member.statistics().services["hostile"]
        assert (service.failed, service.processes_died, service.processes_killed) == (len(ways) + 1, 0, 0)


async def test_a_process_that_says_it_ends_and_does_not_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 0.05)
    async with open_stage() as stage:
        _, shop = await stage.pair(make_hostile(), limits=ONE)
        pid = (await shop.request("hostile", operation="look"))[0]
        with pytest.raises(iris.RemoteError, match="SystemExit"):
            await shop.request("hostile", operation="exit_with_a_thread")
        assert (await shop.request("hostile", operation="look", timeout=30))[0] != pid
        await wait_gone(pid)


@pytest.mark.long
async def test_a_process_that_ends_right_behind_its_answer_is_given_to_nobody(tmp_path: Path) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(make_hostile(), limits=ONE)
        for number in range(6):
            file = tmp_path / str(number)
            (pid, _) = await shop.request("hostile", operation="look", timeout=30)
            pids: list[int] = []

            async def ask(file: Path, pids: list[int]) -> None:
                pids.append(await shop.request("hostile", str(file), operation="exit_behind_the_answer", timeout=30))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, file, pids)
                await trio.sleep(0.02)
                file.touch()
                while is_running(pid):
                    time.sleep(0.001)  # noqa: ASYNC251 -- the answer and the end are to be found together
            assert pids == [pid]
            assert (await shop.request("hostile", "next", operation="look", timeout=30))[1] == "next"


async def test_a_process_that_has_left_its_group_is_killed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 0.05)
    async with open_stage() as stage:
        _, shop = await stage.pair(make_hostile(), limits=ONE)
        file = tmp_path / "pid"
        with pytest.raises(iris.RequestTimeout):
            await shop.request("hostile", str(file), operation="leave_the_group", timeout=0.5)
        await wait_gone(int(file.read_text()))
        assert (await shop.request("hostile", "next", operation="look", timeout=30))[1] == "next"


async def test_a_handler_is_told_to_end_also_if_one_before_it_has_ignored_that(tmp_path: Path) -> None:
    async with open_stage() as stage:
        member, shop = await stage.pair(make_hostile(), limits=ONE)
        await shop.request("hostile", operation="ignore_interrupts")
        file = tmp_path / "told"
        with pytest.raises(iris.RequestTimeout):
            await shop.request("hostile", str(file), operation="wait", timeout=0.2)
        (pid, _) = await shop.request("hostile", operation="look", timeout=30)
        assert file.read_text() == str(pid)
        assert member.statistics().services["hostile"].processes_killed == 0


@pytest.mark.long
@pytest.mark.parametrize("what", ["fork_and_answer_twice", "close_all", "write_to_all"])
async def test_a_handler_that_spoils_its_connection_costs_one_more_request_at_most(what: str) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(make_hostile(), limits=ONE)
        ask = partial(shop.request, "hostile", timeout=30)
        (pid, _) = await ask(operation="look")
        codes: list[str] = []
        operations = chain([what], repeat("look"))
        with trio.fail_after(60):
            while is_running(pid):  # a second answer may come late: it is found by the request behind it
                try:
                    await ask(operation=next(operations))
                except iris.RemoteError as error:
                    codes.append(error.code)
        assert codes in (["process_died"], ["process_died"] * 2)
        for number in range(5):
            assert (await ask(number, operation="look"))[1] == number


async def test_arguments_that_are_no_text_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "\udcff", "\ud800"])
    async with trio.open_nursery() as nursery:
        pool = ProcessPool("work", [InProcess(look, operation=False)], 1, 10_000, nursery)
        with trio.fail_after(30):
            await pool.open()
        assert pool.statistics().processes == 1
        nursery.cancel_scope.cancel()


async def test_calls_that_are_given_up_at_any_time_leave_nothing_and_mix_no_answers() -> None:
    chance = random.Random(7)
    async with open_stage() as stage:
        member, shop = await stage.pair(make_hostile(), limits=iris.Limits(concurrency=20))
        ask = partial(shop.request, "hostile", operation="look")
        await ask()
        before = descriptors()

        async def give_up(number: int) -> None:
            # A member whose machine is slow may send some away.
            with suppress(iris.Overloaded), trio.move_on_after(chance.uniform(0, 0.02)):
                assert (await ask(number, timeout=30))[1] == number

        for turn in range(5):
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(give_up, 100 * turn + number)
        for number in range(10):
            assert (await ask(number, timeout=30))[1] == number
        await wait_until(lambda: not member.statistics().services["hostile"].running)
        service = member.statistics().services["hostile"]
        assert service.processes_killed == service.processes_died == 0
        assert descriptors() <= before + 3 * (service.processes - 1) + 3
