"""The media pipeline: films at one site, made smaller at another one, which loses its workers meanwhile.

The page docs/howto/realms/media.md runs it as well, with one film.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

import iris
import iris.aio.testing
from tests.support.federations import free_gateway_url
from tests.support.processes import ROOT, Child, children, open_realm

MEDIA = ROOT / "examples" / "media"
PATIENCE = 120.0
FILMS = 6
FRAMES = 200
SERVES = " serves scalers, transcoders at "


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The programs of the example, by name."""
    monkeypatch.setattr(sys, "path", [str(MEDIA), *sys.path])
    names = ("y4m", "farm", "ingest")
    yield {name: __import__(name) for name in names}
    for name in names:
        del sys.modules[name]


def film(y4m: ModuleType, number: int, count: int, width: int = 160, height: int = 120) -> tuple[bytes, bytes]:
    """Return a film, and what the farm makes of it."""
    frames = [bytes((x + number + frame) % 256 for x in range(width)) * height for frame in range(count)]
    whole, smaller = io.BytesIO(), io.BytesIO()
    y4m.write_header(whole, width, height)
    y4m.write_frames(whole, frames)
    y4m.write_header(smaller, width // 2, height // 2)
    y4m.write_frames(smaller, [y4m.halved(frame, width) for frame in frames])
    return whole.getvalue(), smaller.getvalue()


def is_underway(directory: Path) -> bool:
    """Return whether part of a film is back."""
    with suppress(FileNotFoundError):  # it was finished while we looked
        return any(part.stat().st_size > 100_000 for part in directory.glob("*.part"))
    return False


def test_a_film_comes_back_half_as_large(programs: dict[str, Any], tmp_path: Path) -> None:
    y4m, farm, ingest = (programs[name] for name in ("y4m", "farm", "ingest"))
    source = tmp_path / "lobby.y4m"
    whole, smaller = film(y4m, 0, 40)
    source.write_bytes(whole)
    went_on: list[None] = []
    scalers = iris.aio.Service("scalers")  # in this process: starting another one takes longer than the rest
    scalers.request("halve")(farm.halve)

    async def main() -> None:
        async with (
            iris.aio.testing.autojump_clock(),
            iris.aio.testing.open_network() as network,
            network.open_node("farm") as member,
            network.open_node("ingest") as node,
            member.join("scalers", scalers),
            member.join("transcoders", farm.transcoders),
        ):
            assert await ingest.transcode(node, source, lambda: went_on.append(None)) == 40

    asyncio.run(main())
    assert (tmp_path / "lobby.small.y4m").read_bytes() == smaller
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lobby.small.y4m", "lobby.y4m"]
    assert len(went_on) == 4, "groups of 13 frames"


@pytest.mark.long
async def test_every_film_comes_back_whole_while_the_farm_loses_workers(programs: dict[str, Any]) -> None:
    with open_realm() as directory:
        url = free_gateway_url()
        films = {directory / f"{number}.y4m": film(programs["y4m"], number, FRAMES) for number in range(FILMS)}
        for path, (whole, _) in films.items():
            path.write_bytes(whole)

        def child(name: str, ready: str, *command: str) -> Child:
            environment = {"PYTHONPATH": os.pathsep.join((str(MEDIA), str(ROOT))), "PYTHONUNBUFFERED": "1"}
            return Child(
                (sys.executable, *command), ready=ready, log=directory / f"{name}.txt", environment=environment
            )

        iris_ = ("-m", "iris")
        data = str(directory / "log")
        serve = ("run", "farm:scalers", "farm:transcoders", "--site", "farm", "--workers", "2")
        farm = child("farm", "2 workers serve", *iris_, *serve)
        others = [
            child("studio", "iris: ", *iris_, "gateway", "--site", "studio", "--listen", url),
            child("gateway", "iris: ", *iris_, "gateway", "--site", "farm", "--peer", url, "--export", "transcoders"),
            child("bridge", "stores", *iris_, "bridge", "--site", "studio", "--topic", "films.>", "--data", data),
        ]
        ingest = child("ingest", "", str(MEDIA / "ingest.py"))
        done: dict[str, int] = {}
        lost = 0
        try:
            async with trio.open_nursery() as nursery:
                for one in (farm, *others):
                    nursery.start_soon(trio.to_thread.run_sync, one.start)
            ingest.launch()
            async with (
                iris.open_node("office", site="studio") as office,
                office.subscribe("films.done", overflow="wait") as announced,
            ):
                with trio.fail_after(PATIENCE):
                    for count in (1, 2):  # one that may have a film, or some of its frames, and then all of them
                        while (directory / "farm.txt").read_text().count(SERVES) < 2 + lost:  # noqa: ASYNC110
                            await trio.sleep(0.02)
                        for path in list(films)[len(done) : len(done) + FILMS // 2]:
                            await office.publish_confirmed("films.new", str(path), timeout=PATIENCE)
                        while not is_underway(directory):  # noqa: ASYNC110
                            await trio.sleep(0.02)
                        for worker in children(farm.pid)[:count]:
                            os.kill(worker, signal.SIGKILL)
                            lost += 1
                        already = len(done)
                        while len(done) < already + FILMS // 2:
                            event = await anext(announced)
                            done[event.payload["film"]] = event.payload["frames"]
            made = {path: path.with_suffix(".small.y4m").read_bytes() for path in films}
            log = (directory / "ingest.txt").read_text()
            assert [one.end(signal.SIGTERM) for one in (farm, *others)] == [0] * 4
        finally:
            for one in (ingest, farm, *others):
                one.end()
    assert done == {str(path): FRAMES for path in films}
    assert made == {path: smaller for path, (_, smaller) in films.items()}
    assert "TunnelBroken" in log
