"""The page of the demo: the kill, the balance and Spark's sums while it runs, and three commands at its end."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import urllib.request
from collections.abc import Callable

import pytest
import trio
from rich.console import Console

import iris
from iris.demo.checks import check_outcome
from iris.demo.display import Stages
from iris.demo.page import DemoPage, next_commands, open_page
from iris.kernel.tasks import open_background
from tests.support import browser
from tests.support.command import open_terminal
from tests.support.outcomes import counters, right_outcome
from tests.support.stages import open_stage

CELLS = "return [...document.querySelectorAll('#%s tbody tr')].map((row) => row.textContent);"


def answering(name: str, **operations: Callable[[iris.Request], object]) -> iris.Service:
    """Return a service that answers these operations."""
    service = iris.Service(name)
    for operation, answer in operations.items():
        service.request(operation)(answer)
    return service


async def ask_on(node: iris.Node) -> None:
    """Ask for the weather until the test has seen enough."""
    while True:
        await node.request("weather", operation="observe")
        await trio.sleep(0.05)


@browser.in_browser
@pytest.mark.xdist_group("dash")  # one browser for all
async def test_a_browser_sees_the_kill_the_balance_and_the_sums_and_then_the_end() -> None:
    stages = Stages(Console(file=io.StringIO()), None)
    page = DemoPage(stages, 5, {"AA": "American Airlines Inc."})
    books = {"request": counters(9, answered=8, waiting=1), "broadcast": counters(4, answered=3)}
    figures = {"AA": {"flights": 2, "arrived": 2, "mean_delay": 1.5, "id_sum": 1, "id_square_sum": 1}}
    outcome = right_outcome()
    ended = trio.Event()

    def look(url: str) -> None:
        with browser.open_page(url) as shown:
            shown.watch_problems()
            shown.wait_for("document.querySelector('.row.killed') && document.querySelector('#carriers tbody tr')")
            shown.wait_for("document.querySelector('#chart .killed')")
            assert shown.run("return document.getElementById('state').textContent") == "Ask"
            balance = dict.fromkeys(("request", "broadcast"), "")
            for row in shown.run(CELLS % "books"):
                balance[row.rstrip("✓✗0123456789")] = row[-1]
            assert balance == {"request": "✓", "broadcast": "✗"}
            assert shown.run(CELLS % "carriers") == ["American Airlines Inc.2+1.50"]
            trio.from_thread.run_sync(ended.set)
            shown.wait_for("!document.getElementById('end').hidden && document.getElementById('plan').hidden")
            code = "return [...document.querySelectorAll('#commands code')].map((one) => one.textContent)"
            assert shown.run(code) == next_commands()
            assert shown.run("return document.querySelectorAll('#checks .ok').length") == len(check_outcome(outcome))
            assert shown.problems == []

    async with open_stage() as stage:
        await stage.member(answering("weather", observe=lambda _: None), "weather-1")
        await stage.member(answering("tower", books=lambda _: books), "tower")
        await stage.member(answering("spark", figures=lambda _: figures), "spark")
        node = await stage.node("airport")
        for cluster in ("weather", "tower", "spark"):
            await node.wait_for(cluster)
        page.note_killed(os.getpid())
        async with open_page(page) as url, trio.open_nursery() as nursery:
            with stages.stage("Ask", total=2, unit="hours"):
                async with page.watching(node), open_background() as asking:
                    nursery.start_soon(trio.to_thread.run_sync, look, url)
                    asking.start_soon(ask_on, node)
                    await ended.wait()
            await page.finish(outcome, check_outcome(outcome))


async def test_who_was_killed_before_anybody_looked_is_shown() -> None:
    page = DemoPage(Stages(Console(file=io.StringIO()), None), 5, {})
    page.note_killed(17)

    def look(url: str) -> object:
        with urllib.request.urlopen(f"{url}state", timeout=30) as answer:
            return json.load(answer)["members"]

    async with open_page(page) as url:
        assert await trio.to_thread.run_sync(look, url) == [{"process": 17, "served": None, "killed": True}]


async def test_the_end_waits_for_nobody_who_does_not_look() -> None:
    page = DemoPage(Stages(Console(file=io.StringIO()), None), 5, {})
    outcome = right_outcome()
    with trio.fail_after(1):
        await page.finish(outcome, check_outcome(outcome))


def test_the_commands_work_as_they_stand() -> None:
    member, request, dash = (shlex.split(command) for command in next_commands())
    assert subprocess.run([member[0], "--version"], check=True, capture_output=True).stdout.startswith(b"iris ")
    with (
        open_terminal() as terminal,
        terminal.started(*member[1:], announces="serves weather"),
        terminal.started(*dash[1:], announces="open http://127.0.0.1:"),
    ):
        done = terminal.run(*request[1:])
        assert done.returncode == 0, done.stderr
        assert "temp" in json.loads(done.stdout)
