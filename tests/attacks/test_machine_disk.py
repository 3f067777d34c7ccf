"""A disk that is full, or read only, for a while: what is not written is written later, and both are said."""

from __future__ import annotations

import errno
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.cluster.discovery.address_book import AddressBook, AddressFile
from iris.testing import open_network
from tests.node.opening.test_opening import LOOPBACK, OUTSIDE, World
from tests.node.opening.test_shortages import Threads

NOW = 1_000_000.0


class FullDisk:
    """A disk on which no file can be made for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, directory: Path) -> None:
        self.is_full = False
        self.refused = 0
        real = os.open

        def opened(path: Any, flags: int, *args: Any, **more: Any) -> int:
            if self.is_full and flags & os.O_CREAT and (str(directory) in str(path) or "dir_fd" in more):
                self.refused += 1
                raise OSError(code, os.strerror(code))
            return real(path, flags, *args, **more)

        monkeypatch.setattr(os, "open", opened)


@pytest.fixture(params=[errno.ENOSPC, errno.EROFS], ids=["full", "read only"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FullDisk:
    return FullDisk(monkeypatch, request.param, tmp_path)


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", Threads().run_sync)


def about(caplog: pytest.LogCaptureFixture, text: str) -> list[tuple[int, str]]:
    return [(record.levelno, record.message) for record in caplog.records if text in record.message]


async def test_a_document_says_when_it_is_not_saved_when_it_is_again_and_what_its_end_costs(
    autojump_clock: MockClock, tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "iris")
    async with open_network(seed=1) as network, network.open_node("a") as node:
        async with node.state("prices", path=tmp_path / "prices") as state:
            for round_ in range(2):
                state["eur"] = round_
                await trio.sleep(3)
                disk.is_full = True
                for number in range(3):
                    state["usd"] = number
                    await trio.sleep(3)
                disk.is_full = False
                await trio.sleep(3)
            state["gbp"] = 1
            disk.is_full = True
        disk.is_full = False
        said = about(caplog, "the document prices is")
        assert [level for level, _ in said] == [logging.WARNING, logging.INFO] * 2 + [logging.WARNING]
        assert all("tried again" in said[at][1] for at in (0, 2))
        assert "lacks the newest edits" in said[4][1]
        async with node.state("prices", path=tmp_path / "prices") as state:
            assert dict(state) == {"eur": 1, "usd": 2}


async def test_a_node_that_ends_with_all_of_its_document_saved_says_nothing(
    autojump_clock: MockClock, tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_network(seed=1) as network, network.open_node("a") as node:  # noqa: SIM117
        async with node.state("prices", path=tmp_path / "prices") as state:
            state["eur"] = 1
            await trio.sleep(3)
            disk.is_full = True
    assert about(caplog, "the document prices is") == []


@pytest.mark.parametrize("there", [False, True])
def test_addresses_that_could_not_be_written_are_written_when_they_can_be(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture, there: bool
) -> None:
    book, file = AddressBook(), AddressFile(tmp_path / "realm.json")
    if there:
        book.saw(["tcp://a:1"], NOW)
        file.save(book, NOW)
    book.saw(["tcp://b:1"], NOW)
    disk.is_full = True
    for _ in range(3):
        copy = book.copy()
        file.save(copy, NOW)
        book.merge(copy, NOW)
        assert book.unsaved
    disk.is_full = False
    file.save(book, NOW)
    assert not book.unsaved
    read = AddressBook()
    AddressFile(tmp_path / "realm.json").load(read, NOW)
    assert "tcp://b:1" in read.urls()
    assert len(caplog.records) == 1


@pytest.mark.long
async def test_a_node_opens_serves_and_ends_on_a_full_disk(
    autojump_clock: MockClock, tmp_path: Path, disk: FullDisk, own_home: None
) -> None:
    world = World(tmp_path / "run")
    opening = partial(iris.open_node, credential=world.shop, environment=world.environment())
    with trio.fail_after(400):
        async with opening(listen=[OUTSIDE]) as one, one.subscribe("news") as events:  # noqa: SIM117
            async with opening(listen=[LOOPBACK]) as two:
                disk.is_full = True
                await trio.sleep(200)
                await two.publish("news", "it rains")
                assert (await anext(events)).payload == "it rains"
        assert disk.refused
