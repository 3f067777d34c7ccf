"""Fixtures of several attacks: networks, doors, and machines that are short of something."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from iris.testing import Network, open_network
from tests.doors.mqtt import place as mqtt
from tests.node.opening.test_opening import World
from tests.node.opening.test_shortages import Threads
from tests.support.doors import Run, open_place, runner


@pytest.fixture
async def network(autojump_clock: MockClock) -> AsyncIterator[Network]:
    """Return a network in memory on a virtual clock."""
    async with open_network(seed=5) as network:
        yield network


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Return the threads of the machine, which may have none left."""
    made = Threads()
    monkeypatch.setattr(trio.to_thread, "run_sync", made.run_sync)
    return made


@pytest.fixture
def world(own_home: None, tmp_path: Path) -> World:
    """Return a realm with a credential, and a directory for what runs."""
    return World(tmp_path / "run")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a program with a door for HTTP."""
    return runner(tmp_path, monkeypatch, open_place, within=100)


@pytest.fixture
def run_mqtt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a program with a door for MQTT."""
    return runner(tmp_path, monkeypatch, mqtt.open_place, within=60)
