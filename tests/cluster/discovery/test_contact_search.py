"""The search of a client for a node to begin with: on this machine, past what killed processes have left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import iris
from iris.cluster.discovery import Registry
from iris.kernel.names import NodeId
from iris.security.files import runtime_directory


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A local realm of its own, with short paths for its sockets."""
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


async def here(_request: iris.Request) -> str:
    return "here"


def registry(node: iris.Node) -> Registry:
    return Registry(runtime_directory(node.realm))


async def test_a_client_finds_a_node_of_this_machine_and_leaves_no_entry_there(home: Path) -> None:
    service = iris.Service("store")
    service.request(here)
    async with iris.open_node("store") as member, member.join("store", service):
        async with iris.open_node("shop", client=True) as client:
            assert await client.request("store", wait=5) == "here"
            assert set(registry(member).entries()) == {member.id}
        assert not registry(member).has_socket(NodeId(client.id))


async def test_entries_of_killed_processes_are_passed_over_and_removed(home: Path) -> None:
    service = iris.Service("store")
    service.request(here)
    async with iris.open_node("store") as member, member.join("store", service):
        entries = registry(member)
        for number in range(40):
            dead = NodeId(f"{number:032x}")
            entries.announce(dead, (f"ipc://{runtime_directory(member.realm)}/{dead}",))
        assert len(entries.entries()) == 41
        with trio.fail_after(60):
            while len(entries.entries()) > 40:  # a client that happens to try the member first meets no other
                async with iris.open_node("shop", client=True) as client:
                    assert await client.request("store", wait=10) == "here"
