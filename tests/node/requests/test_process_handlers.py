"""Handlers in processes: what crosses, what is told, what is killed, and what ends with the member."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

import iris
from iris.patterns.service import process_pool
from tests.support import process_handlers
from tests.support.process_handlers import Query, Quotes, make_work
from tests.support.stages import open_stage

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "programs" / "process_main.py"


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 -- what happens in other processes
            await trio.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_requests_replies_and_errors_cross(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage() as stage:
        member, shop = await stage.pair(make_work())
        ask = partial(shop.request, "work")
        seen = await ask({"a": [1, b"2", None]}, operation="look", headers={"x": "y"}, timeout=20)
        assert seen["payload"] == {"a": [1, b"2", None]}
        assert seen["headers"]["x"] == "y"
        assert seen["operation"] == "look"
        assert 10 < seen["left"] < 20
        assert seen["pid"] != os.getpid()
        whole = bytes(range(256)) * 4000
        again = await ask(whole, operation="look")
        assert again["payload"] == whole
        assert again["pid"] == seen["pid"], "it is kept"
        assert await ask(Query("tea", 2), operation="price") == {"item": "tea", "price": 6}
        await ask("printed there", operation="say")
        with pytest.raises(iris.RemoteError) as failed:
            await ask("nothing", operation="fail")
        assert (failed.value.code, failed.value.message) == ("error", "ValueError: nothing")
        with pytest.raises(iris.RemoteError) as refused:
            await ask("no tea", operation="refuse")
        assert (refused.value.code, refused.value.message) == ("no_such_item", "no tea")
        with pytest.raises(iris.RemoteError) as bad:
            await ask({"itme": "tea"}, operation="price")
        assert (bad.value.code, bad.value.message) == ("bad_request", "payload: item missing; not known: itme")
        service = member.statistics().services["work"]
        assert (service.failed, service.served, service.processes) == (3, 4, 1)
        assert service.latency["fail"].errors == {"ValueError": 1}
    await until(lambda: not is_alive(seen["pid"]))
    out, err = capfd.readouterr()
    assert out == ""
    assert "printed there\n" in err
    (record,) = [one for one in caplog.records if one.name == "iris.handlers" and one.levelno == logging.ERROR]
    assert vars(record)["reason"] == "ValueError"
    assert "process_handlers.py" in vars(record)["cause"]
    assert "raise ValueError(text)" in record.getMessage()


async def test_operations_of_a_class() -> None:
    async with open_stage() as stage:
        member, shop = await stage.pair(Quotes())
        quotes = Quotes.client(shop)
        assert await quotes.price(Query("tea", 2)) == 6  # type: ignore[misc]
        (name, given, caller, pid) = await shop.request("quotes", "x", operation="who")
        assert (name, given, caller) == ("Quotes", "x", "shop")
        assert pid != os.getpid()
        assert member.statistics().services["quotes"].processes == 1


@pytest.mark.skipif(process_pool.processors() < 2, reason="two processes need two processors")
async def test_calls_run_at_the_same_time_and_no_more_than_there_are_processes(tmp_path: Path) -> None:
    async with open_stage() as stage:
        limits = iris.Limits(concurrency=2, queue=1)
        member, shop = await stage.pair(make_work(), limits=limits)
        pids: set[int] = set()

        async def meet(*names: str) -> None:
            files = [str(tmp_path / name) for name in names]
            pids.add(await shop.request("work", files, operation="meet", timeout=30))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(meet, "a", "b")
            nursery.start_soon(meet, "b", "a")
        assert len(pids) == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(meet, "c", "end")
            nursery.start_soon(meet, "d", "end")
            await until(lambda: (tmp_path / "c").exists() and (tmp_path / "d").exists())
            nursery.start_soon(meet, "e", "end")
            await until(lambda: member.statistics().services["work"].queued == 1)
            with pytest.raises(iris.Overloaded):
                await shop.request("work", ["", ""], operation="meet", options=iris.RequestOptions(priority="low"))
            (tmp_path / "end").touch()
        assert len(pids) == 2


async def test_a_handler_is_told_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 60)
    async with open_stage() as stage:
        member, shop = await stage.pair(make_work())
        pid = (await shop.request("work", operation="look"))["pid"]
        file = tmp_path / "deadline"
        with pytest.raises(iris.RequestTimeout):
            await shop.request("work", str(file), operation="wait", timeout=0.2)
        await until(lambda: file.exists() and file.read_text() == str(pid))
        caller = tmp_path / "caller"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(shop.request, "work", str(caller), operation="wait", timeout=60))
            await until(caller.with_suffix(".began").exists)
            nursery.cancel_scope.cancel()
        await until(lambda: caller.exists() and caller.read_text() == str(pid))
        await until(lambda: member.statistics().services["work"].running == 0)
        service = member.statistics().services["work"]
        assert service.expired + service.cancelled == 2
        assert (await shop.request("work", operation="look"))["pid"] == pid, "the process is used again"


async def test_a_process_whose_handler_goes_on_is_killed_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 0.05)
    async with open_stage() as stage:
        member, shop = await stage.pair(make_work())
        file = tmp_path / "pids"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(shop.request, "work", str(file), operation="spin", timeout=60))
            await until(lambda: file.exists() and file.read_text().count(" ") == 1)
            pids = list(map(int, file.read_text().split()))
            nursery.cancel_scope.cancel()
        await until(lambda: not any(map(is_alive, pids)))
        assert (await shop.request("work", operation="look", timeout=30))["pid"] not in pids
        service = member.statistics().services["work"]
        assert (service.processes, service.processes_killed, service.processes_died) == (1, 1, 0)
    assert caplog.text.count("its process was killed") == 1


ENDS = {
    "exit": "SystemExit: 3: its process ends, and is replaced",
    "SIGSEGV": "was killed by SIGSEGV",
}


async def test_a_process_that_ends_costs_its_own_request() -> None:
    options = iris.RequestOptions(idempotent=True)
    async with open_stage() as stage:
        member, shop = await stage.pair(make_work())
        for how, text in ENDS.items():
            with pytest.raises(iris.RemoteError) as died:
                await shop.request("work", how, operation="end", options=options, timeout=30)
            assert text in died.value.message
            assert died.value.code == ("error" if how == "exit" else "process_died")
        before = (await shop.request("work", operation="look", timeout=30))["pid"]
        os.kill(before, signal.SIGKILL)  # while nothing is asked of it
        await until(lambda: not is_alive(before))
        assert (await shop.request("work", operation="look", timeout=30))["pid"] != before
        service = member.statistics().services["work"]
        assert (service.received, service.failed, service.processes_died) == (4, 2, 3)


def test_processes_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    environment = {**os.environ, "IRIS_HOME": str(tmp_path / "home")}
    with subprocess.Popen([sys.executable, PROGRAM, file], env=environment) as program:
        try:
            trio.run(until, lambda: file.exists() and file.read_text().count(" ") == 1)
            pids = list(map(int, file.read_text().split()))
        finally:
            program.kill()
        assert len(pids) == 2
        trio.run(until, lambda: not any(map(is_alive, pids)))


def test_a_program_without_a_guard_is_told_so(tmp_path: Path) -> None:
    environment = {**os.environ, "IRIS_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(PROGRAM), str(tmp_path / "pids"), "unguarded"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "move what it does below 'if __name__ == \"__main__\":'" in ended.stderr


# -- what can be registered ----------------------------------------------------------------------------------


class Held(iris.Service, cluster="held"):
    @iris.operation(process=True)
    def method(self, item: str) -> str:
        return item


def asks_others(item: str, node: iris.Node) -> object:
    return [item, node]


def outer() -> Callable[[iris.Request], object]:
    def inner(_: iris.Request) -> None: ...

    return inner


nameless: Callable[[iris.Request], object] = lambda _: None  # noqa: E731 -- what some users would write


async def waits(_: iris.Request) -> None:
    await trio.lowlevel.checkpoint()


IMPOSSIBLE: list[tuple[Callable[..., Any], str]] = [
    (outer(), "define it with def at the top of a module"),
    (nameless, "define it with def at the top of a module"),
    (functools.partial(process_handlers.look), "define it with def at the top of a module"),
    (asks_others, "which a process does not have"),
    (waits, "use def, or leave process out"),
]


@pytest.mark.parametrize(("handler", "text"), IMPOSSIBLE)
def test_what_a_process_cannot_find_is_refused(handler: Callable[..., Any], text: str) -> None:
    service = iris.Service("store")
    with pytest.raises(iris.ConfigError, match=text):
        service.request("operation", process=True)(handler)
    assert not service.requests


def test_a_method_of_an_object_is_refused() -> None:
    with pytest.raises(iris.ConfigError, match="make it a @staticmethod"):
        Held()


def test_a_handler_has_one_place() -> None:
    with pytest.raises(iris.ConfigError, match="use thread=True or process=True"):
        iris.Service("store").request("operation", thread=True, process=True)


def shadowed(_: iris.Request) -> None: ...


async def test_what_is_found_by_its_name_has_to_be_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    service = iris.Service("store")
    service.request(shadowed, process=True)
    monkeypatch.setattr(sys.modules[__name__], "shadowed", process_handlers.look)
    async with open_stage() as stage:
        node = await stage.node("store")
        with pytest.raises(iris.ConfigError, match="which a process would call"):
            async with node.join("store", service):
                raise AssertionError("it does not join")


async def test_what_cannot_be_imported_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process imports a module anew, whatever the program has made of it."""

    def handler(_: iris.Request) -> None: ...

    handler.__module__, handler.__qualname__ = "only_here", "handler"
    monkeypatch.setitem(sys.modules, "only_here", SimpleNamespace(handler=handler))
    service = iris.Service("store")
    service.request(handler, process=True)
    async with open_stage() as stage:
        node = await stage.node("store")
        with pytest.raises(iris.ConfigError, match="No module named 'only_here'"):
            async with node.join("store", service):
                raise AssertionError("it does not join")
