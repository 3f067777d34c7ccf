"""The code blocks of the pages run, and print what the pages say; docs/pages.py has the kinds of blocks.

The snippets of a page are one session, against whole nodes in memory that serve what the pages talk about.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from anyio.abc import TaskStatus
from trio.testing import MockClock

import iris
import iris.aio.testing
import iris.testing
from docs.pages import NOT_RUN, ROOT, Block, blocks, matches, pages
from tests.support.async_tests import on_asyncio
from tests.support.consoles import run_console

PAGES = {str(page.relative_to(ROOT)): list(blocks(page)) for page in pages() if page.name != "CHANGELOG.md"}


def followers(page: list[Block]) -> dict[int, Block]:
    """Return for each block of a page, by its line, the block ``output`` that stands under it."""
    return {
        block.line: after
        for block, after in pairwise(page)
        if after.language == "output" and block.language == "python"
    }


def is_snippet(block: Block) -> bool:
    return block.language == "python" and block.file is None and ".run(main" not in block.code


SESSIONS = {name: page for name, page in PAGES.items() if any(map(is_snippet, page))}


def is_of_asyncio(name: str) -> bool:
    """Return whether the snippets of a page await what is asyncio's."""
    return any(re.search(r"asyncio\.(?!run)", block.code) for block in SESSIONS[name] if is_snippet(block))


ELSEWHERE = {
    "docs/howto/calls/saga.md": "tests/spark_bridge/outcomes/test_transfers.py",
    "docs/howto/doors/go.md": "tests/doors/process/test_go.py",
    "docs/howto/doors/nng.md": "tests/doors/nng/test_programs.py",
    "docs/howto/doors/open.md": "tests/doors/process/test_page_of_doors.py",
    "docs/howto/doors/web.md": "tests/doors/process/test_browser.py",
    "docs/howto/events/to_postgres.md": "tests/spark_bridge/test_postgres_page.py",
    "docs/howto/spark/kafka.md": "tests/spark_bridge/kafka/test_verbs.py",
    "docs/howto/spark/lake.md": "tests/spark_bridge/test_lake_page.py",
}
"""Pages whose terminals need programs that others wrote, and the test that runs them where these are installed."""
CONSOLES = {
    name: page
    for name, page in PAGES.items()
    if name not in ELSEWHERE and any(block.language == "console" for block in page)
}
SPARK = ("answer", "database", "late_data", "members", "read", "telemetry")
LONG = {*(f"docs/howto/spark/{name}.md" for name in SPARK), "docs/howto/realms/media.md"}
"""Pages that start Spark once or twice each, as docs/tutorial/spark.md does, too; the program of read.md is also run in
the session of tests/spark_bridge/test_spark_examples.py.  And one that starts eight programs."""
PROGRAMS = {
    block.place: (block, output)
    for page in PAGES.values()
    for block in page
    if block.language == "python" and not is_snippet(block) and (output := followers(page).get(block.line))
}


@dataclasses.dataclass
class Row:
    """Result of a look-up, as the pages call it."""

    id: int


@dataclasses.dataclass
class Offer:
    """Price, as the pages call it."""

    item: str
    price: float


def reply(request: iris.Request) -> object:
    return request.payload


async def echo(tunnel: Any) -> None:
    async for message in tunnel:
        await tunnel.send(message)
    await tunnel.send_eof()


async def publish_orders(node: Any) -> None:
    while True:
        await node.publish("orders.created", {"id": 7})
        await anyio.sleep(0.1)


async def store_orders(node: Any, *, task_status: TaskStatus[None]) -> None:
    """Do what a bridge does, without a disk."""
    async with node.subscribe_durable("orders.>") as events:
        task_status.started()
        async for event in events:
            await events.confirm([event])


async def open_world(stack: AsyncExitStack, network: Any) -> dict[str, Any]:
    """Open the nodes that snippets talk to, in trio or in asyncio; return the names that they use."""
    company = await stack.enter_async_context(network.open_node("company"))
    for name in ("databases", "archive"):
        service = iris.Service(name)
        service.request(reply)
        service.tunnel(echo)
        await stack.enter_async_context(company.join(name, service))
    node = await stack.enter_async_context(network.open_node("shop"))
    for name in ("databases", "archive"):
        await node.wait_for(name)
    tasks = await stack.enter_async_context(anyio.create_task_group())
    await tasks.start(store_orders, company)
    tasks.start_soon(publish_orders, company)
    stack.callback(tasks.cancel_scope.cancel)
    return {
        "iris": iris,
        "trio": trio,
        "asyncio": asyncio,
        "dataclasses": dataclasses,
        "node": node,
        "databases": iris.Service("databases"),
        "orders": [{"id": number} for number in range(3)],
        "Row": Row,
        "Offer": Offer,
    }


async def run_session(
    name: str, network: Any, capsys: pytest.CaptureFixture[str], before: Callable[[Block], None]
) -> None:
    outputs = followers(SESSIONS[name])
    async with AsyncExitStack() as stack:
        names = await open_world(stack, network)
        for block in filter(is_snippet, SESSIONS[name]):
            code = compile(block.code, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            capsys.readouterr()
            before(block)
            with anyio.move_on_after(60) as scope:  # those that listen go on for ever
                running = eval(code, names)
                if inspect.iscoroutine(running):
                    await running
            said = capsys.readouterr().out
            if block.line in outputs:
                expected = outputs[block.line].code
                assert matches(expected, said), f"{block.place} printed\n{said}\ninstead of\n{expected}"
            elif scope.cancelled_caught:
                assert said, f"{block.place} has waited for a minute, and nothing has come"


@pytest.mark.parametrize("name", [name for name in SESSIONS if not is_of_asyncio(name)])
async def test_the_snippets_of_a_page_run_and_print_what_it_says(
    autojump_clock: MockClock, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def before(block: Block) -> None:
        # Virtual time does not wait for a thread: it would be over before the thread is.
        real = "thread=True" in block.code
        autojump_clock.rate, autojump_clock.autojump_threshold = (1.0, math.inf) if real else (0.0, 0.0)

    async with iris.testing.open_network() as network:
        await run_session(name, network, capsys, before)


@pytest.mark.parametrize("name", [name for name in SESSIONS if is_of_asyncio(name)])
@on_asyncio()
async def test_the_snippets_of_a_page_for_asyncio_run_and_print_what_it_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with iris.aio.testing.autojump_clock(), iris.aio.testing.open_network() as network:
        await run_session(name, network, capsys, lambda block: None)


@pytest.mark.parametrize("place", PROGRAMS)
def test_a_program_of_a_page_prints_what_it_says(place: str, tmp_path: Path) -> None:
    block, output = PROGRAMS[place]
    done = subprocess.run(
        [sys.executable, "-W", "error", *([str(block.file)] if block.file else ["-c", block.code])],
        env={**os.environ, "IRIS_HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert matches(output.code, done.stdout), done.stdout


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in CONSOLES])
def test_the_terminals_of_a_page_show_what_it_says(name: str) -> None:
    run_console(CONSOLES[name])


def test_a_page_that_names_a_wrong_folder_is_found_out() -> None:
    def terminal(caption: str) -> Block:
        code = "$ python -c 'import examples.request'\n..."
        options = {"caption": caption}
        return Block(page=ROOT / "README.md", line=1, language="console", code=code, file=None, options=options)

    run_console([terminal("Terminal 1, in a checkout")])
    for wrong in ("Terminal 1", "Terminal 1, in examples/programs"):
        with pytest.raises(AssertionError, match="No module named 'examples"):
            run_console([terminal(wrong)])


def test_every_script_that_a_page_shows_is_run() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "deploy").glob("test_*.py"))
    scripts = [block.file for page in PAGES.values() for block in page if block.language == "sh" and block.file]
    assert scripts
    assert [script for script in scripts if script.name not in tests] == []


def test_every_program_that_a_page_shows_is_run() -> None:
    """By the output under it, by a terminal, or by a test that names it."""
    tests = "".join(
        path.read_text()
        for folder in ("examples", "spark_bridge", "testing")
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
    )
    run = {block.file for block, _ in PROGRAMS.values()}
    commands = "".join(block.code for page in PAGES.values() for block in page if block.language == "console")
    for page in PAGES.values():
        for block in page:
            if block.language == "python" and block.file and block.file not in run:
                stem = block.file.stem
                assert stem in commands or stem.removesuffix("_before").removesuffix("_after") in tests, block.place


def test_a_command_that_is_not_run_has_a_reason() -> None:
    begun = {
        (block.place, line)
        for page in PAGES.values()
        for block in page
        if block.language == "sh" and block.file is None
        for line in re.sub(r"\\\n\s*", "", block.code).splitlines()
        if line and not line.startswith("#")
    }
    assert begun
    assert [(place, line) for place, line in begun if not line.startswith(tuple(NOT_RUN))] == []
    assert [start for start in NOT_RUN if not any(line.startswith(start) for _, line in begun)] == []


def test_pages_whose_terminals_are_run_elsewhere_are() -> None:
    for name, test in ELSEWHERE.items():
        assert Path(name).name in (Path(__file__).resolve().parents[2] / test).read_text()


def test_the_pages_have_snippets() -> None:
    assert len(SESSIONS) >= 3
    assert len(CONSOLES) >= 1
    assert len(PROGRAMS) >= 1
    assert "docs/reference/streams.md" in SESSIONS


def test_what_a_page_says_is_compared() -> None:
    assert matches("hello ...\n", "hello world\n")
    assert matches("first\n...\nlast\n", "first\nthis\nthat\nlast\n")
    assert not matches("hello\n", "hello world\n")
    assert not matches("hello\n", "hello\nworld\n")
