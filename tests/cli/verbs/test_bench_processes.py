"""``iris bench`` as people run it: alone, and as two ends."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator

import pytest

from tests.support.command import Terminal, interrupt, open_terminal


@pytest.fixture
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        yield opened


def members_running() -> int:
    """Return how many members of a swarm there are on this machine."""
    table = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return sum("iris.bench.service" in line for line in table.splitlines())


def test_alone_it_starts_both_ends_and_leaves_nothing(terminal: Terminal) -> None:
    before = members_running()
    done = terminal.run("bench", "--case", "request-1", "--case", "handshake", "--seconds", "0.1", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    said = json.loads(done.stdout)
    assert [result["case"] for result in said["results"]] == ["request-1/p50", "request-1/p99", "handshake/rate"]
    assert said["run"]["members"] == 1
    assert members_running() <= before
    assert not (terminal.directory.parent / "home").exists(), "the user's own realm is not touched"


def test_two_ends_find_each_other_by_the_name_of_a_cluster(terminal: Terminal) -> None:
    with terminal.started("bench", "--serve", "--cluster", "speed", announces="iris bench --to speed") as server:
        arguments = ("--case", "publish-100", "--case", "tunnel-64k", "--seconds", "0.1", "--rounds", "1")
        done = terminal.run("bench", "--to", "speed", *arguments)
        assert (done.returncode, done.stderr) == (0, b"")
        lines = done.stdout.decode().splitlines()
        assert [line.split()[-1] for line in lines[1:]] == ["msg/s", "MiB/s"]
        assert interrupt(server) == 0


def test_interrupted_it_ends_with_status_130_and_its_members(terminal: Terminal) -> None:
    before = members_running()
    with terminal.started("-v", "bench", "--seconds", "60", "--case", "request-1") as client:
        while members_running() <= before:
            assert client.poll() is None
        assert interrupt(client) == 130
        assert client.stderr is not None
        assert b"Traceback" not in client.stderr.read()
    assert members_running() <= before
