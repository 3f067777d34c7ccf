"""The door for nng with mangos, which speaks nng's protocols in Go and shares no line with nng."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doors.nng.place import Place
from tests.support.doors import with_door

PROGRAM = Path(__file__).parent / "mangos"

BUILDING = 600.0
"""Seconds to bring mangos in and to compile Go's own library, which a machine does once."""

pytestmark = [
    pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed: apt install golang-go (1.24 or later)"),
    pytest.mark.timeout(2 * BUILDING),
]

RIGHTS: Any = {"call": ("greeters", "orders"), "publish": ("orders.>",), "subscribe": ("orders.>",), "serve": (">",)}


@pytest.fixture(scope="module")
def mangos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program; where mangos cannot be had, tests are skipped and say so."""
    built = tmp_path_factory.mktemp("mangos") / "mangos"
    variables = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}

    def go(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["go", *arguments],
            cwd=PROGRAM,
            env=variables,
            capture_output=True,
            text=True,
            timeout=BUILDING,
            check=False,
        )

    brought = go("mod", "download")
    if brought.returncode != 0:
        pytest.skip(f"mangos cannot be brought in, or Go is too old: {brought.stderr[-500:]}")
    done = go("build", "-o", str(built), ".")
    assert done.returncode == 0, done.stderr
    return built


@asynccontextmanager
async def started(*command: object) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def said(*command: object) -> str:
    async with started(*command) as process:
        out, _ = await process.communicate()
        assert process.returncode == 0, out
        return out.decode()


@with_door(rights=RIGHTS)
async def test_req_surveyor_push_and_sub_of_mangos(place: Place, mangos: Path) -> None:
    at = place.door.addresses
    assert await said(mangos, "req", at["req"], "greeters text\nworld") == "200 text\nworld\n"
    assert (await said(mangos, "req", at["req"], "nobody")).startswith("403 not_allowed\n")
    head, _, rest = (await said(mangos, "surveyor", at["surveyor"], "greeters text\nall")).partition("\n")
    assert (head, [one["payload"] for one in json.loads(rest)["answers"]]) == ("200 json", ["all"])
    async with started(mangos, "sub", at["sub"]) as following:
        assert following.stdout is not None
        assert await following.stdout.readline() == b"ready\n"
        await place.connected("sub")
        assert await said(mangos, "push", at["push"], 'orders.tea json\n{"amount": 3}') == ""
        out, _ = await following.communicate()
    assert re.fullmatch(r'orders.tea json id=[0-9a-f]{8}-1\n{"amount":3}\n', out.decode())


@with_door(rights=RIGHTS, serve=("orders",))
async def test_rep_and_respondent_of_mangos_serve_until_they_are_killed(place: Place, mangos: Path) -> None:
    at = place.door.addresses
    async with started(mangos, "serve", at["orders.rep"], at["orders.respondent"]):
        answers = [await place.member.request("orders", "tea", wait=30) for _ in range(40)]
        assert {str(one).partition(":")[0] for one in answers} == {"rep", "respondent"}
        assert {str(one).partition(": ")[2] for one in answers} == {"TEA"}
        async with place.member.survey("orders", "all") as survey:
            assert [str(one.payload).partition(": ")[2] async for one in survey] == ["ALL", "ALL"]
        assert (await said(mangos, "req", at["req"], "orders text\nby mangos")).endswith(": BY MANGOS\n")
    await place.connected("orders.rep", 0)
    await place.connected("orders.respondent", 0)
    assert (await said(mangos, "req", at["req"], "orders text\nx")).startswith(("404 no_such_cluster", "503 overl"))
