"""Test runs of users that are not as usual: where their files are, what their marks say, and networks in networks."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- what is tried
import os
import time
from pathlib import Path

import pytest
from trio.testing import MockClock

import iris
import iris.aio
import iris.testing
from iris.aio.testing import autojump_clock as virtual_time
from iris.aio.testing import open_network
from tests.support.async_tests import on_asyncio
from tests.testing.test_plugin import WHERE, line, run_tests

SOMEBODY = 54_321


async def test_temporary_files_may_lie_behind_a_link_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    link = tmp_path / "temporary"
    link.symlink_to("scratch")
    if os.geteuid() == 0:  # links of root are followed anyhow
        os.chown(link, SOMEBODY, SOMEBODY, follow_symlinks=False)
    ran = await run_tests(tmp_path, WHERE, environment={"TMPDIR": str(link)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert line(ran, "home").startswith(str(tmp_path / "scratch"))
    assert [*(tmp_path / "scratch").iterdir()] == []


MARKED = """
import pytest

def test_nothing():
    pass

@pytest.mark.iris({})
async def test_marked(iris_world):
    pass
"""


@pytest.mark.parametrize("options", ["seed=1", "5"])
async def test_a_mark_that_is_wrong_is_named_and_breaks_nothing_within_pytest(tmp_path: Path, options: str) -> None:
    ran = await run_tests(tmp_path, MARKED.format(options))
    said = ran.stdout + ran.stderr
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR, said
    assert "INTERNALERROR" not in said
    assert "test_marked: @pytest.mark.iris: " in said


@on_asyncio()
async def test_networks_in_networks_are_apart_and_programs_are_of_the_inner_one() -> None:
    async with virtual_time(), open_network() as outer:
        async with open_network(seed=2) as inner, iris.aio.open_node("a") as a, inner.open_node("b") as b:
            await asyncio.sleep(1)
            assert a.realm == b.realm
            assert [node.speaks_for for node in a.nodes()] == ["b"]
        async with iris.aio.open_node("a") as a, outer.open_node("b") as b:
            await asyncio.sleep(1)
            assert a.realm == b.realm
            assert [node.speaks_for for node in a.nodes()] == ["b"]


calc = iris.Service("calc")


@calc.request(process=True)
def work(request: iris.Request) -> object:
    time.sleep(0.2)
    return request.payload


async def test_a_process_is_refused_where_time_is_virtual(autojump_clock: MockClock) -> None:
    async with iris.testing.open_network() as network, network.open_node("calc") as node:
        with pytest.raises(iris.ConfigError, match="process=True answers in real time"):
            async with node.join("calc", calc):
                pass


@on_asyncio()
async def test_a_process_is_refused_where_time_is_virtual_with_asyncio() -> None:
    async with virtual_time(), open_network() as network, network.open_node("calc") as node:
        with pytest.raises(iris.ConfigError, match="process=True answers in real time"):
            async with node.join("calc", calc):
                pass
