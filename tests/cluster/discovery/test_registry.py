"""The registry of the local realm: files that only suggest where to dial."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iris.cluster.discovery.registry import Registry
from iris.kernel.errors import ConfigError
from iris.kernel.names import NodeId

ONE, TWO = NodeId("1" * 32), NodeId("2" * 32)


def test_what_is_announced_is_found_until_it_is_withdrawn(tmp_path: Path) -> None:
    registry, other = Registry(tmp_path), Registry(tmp_path)
    registry.announce(ONE, ("ipc:///one", "tcp://127.0.0.1:1"))
    other.announce(TWO, ())
    assert registry.entries() == other.entries() == {ONE: ("ipc:///one", "tcp://127.0.0.1:1"), TWO: ()}
    other.withdraw(ONE)
    other.withdraw(ONE)
    assert registry.entries() == {TWO: ()}


def test_who_withdraws_a_killed_node_removes_its_socket_as_well(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.announce(ONE, ())
    for name in (ONE, TWO):
        (tmp_path / name).touch()
    registry.withdraw(ONE)
    assert [path.name for path in tmp_path.iterdir()] == [TWO]


def test_the_directory_goes_with_the_last_of_it_and_may_be_made_again(tmp_path: Path) -> None:
    place = tmp_path / "realm"
    place.mkdir()
    registry = Registry(place)
    registry.announce(ONE, ())
    registry.sweep()
    assert registry.exists, "somebody is there"
    registry.withdraw(ONE)
    registry.sweep()
    registry.sweep()
    assert not registry.exists
    assert registry.entries() == {}
    assert tmp_path.is_dir()


def test_a_second_announcement_replaces_the_first(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.announce(ONE, ("ipc:///one",))
    registry.announce(ONE, ("ipc:///two",))
    assert registry.entries() == {ONE: ("ipc:///two",)}
    assert [path.name for path in tmp_path.iterdir()] == [f"{ONE}.node"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"addresses": null}',
        b'{"addresses": "ipc:///x"}',
        b'{"addresses": {"ipc:///x": 1}}',
        b"\xff\xfe",
        b"[" * 16_000,
        b'{"addresses": ["' + b"x" * 20_000 + b'"]}',
    ],
)
def test_an_entry_that_makes_no_sense_is_passed_over(tmp_path: Path, content: bytes) -> None:
    registry = Registry(tmp_path)
    registry.announce(TWO, ("ipc:///two",))
    (tmp_path / f"{ONE}.node").write_bytes(content)
    assert registry.entries() == {TWO: ("ipc:///two",)}


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text(max_size=5), st.lists).map(lambda v: json.dumps({"addresses": v}).encode())
)
def test_any_content_is_an_entry_or_passed_over(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("registry")
    (directory / f"{ONE}.node").write_bytes(content)
    for addresses in Registry(directory).entries().values():
        assert all(isinstance(url, str) for url in addresses)


def test_other_files_are_no_entries(tmp_path: Path) -> None:
    for name in ("x.node", f"{ONE}.draft", f".{ONE}.draft", ONE, f"{ONE}.node.old", f"{ONE.upper()}X.node"):
        (tmp_path / name).write_text('{"addresses": []}')
    (tmp_path / f"{TWO}.node").mkdir()
    assert Registry(tmp_path).entries() == {}


def test_a_directory_that_is_not_there_is_empty_and_cannot_be_written_to(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "missing")
    assert registry.entries() == {}
    registry.withdraw(ONE)
    with pytest.raises(ConfigError, match=r"cannot write to the registry .*missing"):
        registry.announce(ONE, ())


def test_known_nodes_are_passed_over_unread_and_no_more_than_asked_for_are_read(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    nodes = [NodeId(f"{number:032x}") for number in range(10)]
    for node in nodes:
        registry.announce(node, (f"ipc:///{node}",))
    assert set(registry.entries(nodes[:7])) == set(nodes[7:])
    assert len(registry.entries(nodes[:3], 4)) == 4
    assert registry.entries(nodes) == {}


def test_who_of_too_many_is_returned_is_left_to_chance(tmp_path: Path) -> None:
    nodes = [NodeId(f"{number:032x}") for number in range(20)]
    for node in nodes:
        Registry(tmp_path).announce(node, (f"ipc:///{node}",))
    seen = {frozenset(Registry(tmp_path, random=Random(seed)).entries((), 4)) for seed in range(20)}
    assert len(seen) > 15
    assert set().union(*seen) == set(nodes)
