"""Finding other nodes: seeds and their names, the registry, the local network, the address book."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from iris.cluster.discovery.address_book import AddressBook, AddressFile
from iris.cluster.discovery.candidates import PAUSES, AddressSource
from iris.cluster.discovery.discovery import Discovery
from iris.cluster.discovery.local_network import LocalNetwork
from iris.cluster.discovery.mdns import realm_mark
from iris.cluster.discovery.registry import Registry
from iris.cluster.discovery.seeds import Seeds
from iris.cluster.discovery.sources import Sources
from iris.kernel.errors import NotSent
from iris.kernel.names import NodeId
from tests.support.meshes import Fleet, MeshNode, open_meshes
from tests.support.realms import WALL, TestRealm

REALM = "0" * 32


class Names:
    """Addresses of host names, as the test sets them; other names stand for themselves."""

    def __init__(self, **names: tuple[str, ...]) -> None:
        self.names = {f"mem://{name}": urls for name, urls in names.items()}
        self.asked: list[tuple[float, str]] = []

    async def resolve(self, url: str) -> tuple[str, ...]:
        await trio.sleep(0.01)
        self.asked.append((trio.current_time(), url))
        if not (urls := self.names.get(url, (url,))):
            raise NotSent(f"the name in {url} is not known")
        return urls


class Introduced:
    """The nodes that were introduced, and one that is known already."""

    def __init__(self, nodes: list[NodeId] | None, known: NodeId | None) -> None:
        self._nodes = nodes
        self._known = known

    async def introduce(self, node: NodeId, *, by_chance: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        if self._nodes is not None:
            self._nodes.append(node)

    def addresses(self) -> set[str]:
        return set()

    def knows(self, node: NodeId) -> bool:
        return node == self._known


def discovery(
    node: MeshNode,
    *seeds: str,
    names: Names | None = None,
    registry: Registry | None = None,
    lan: LocalNetwork | None = None,
    book: AddressBook | None = None,
    file: AddressFile | None = None,
    introduced: list[NodeId] | None = None,
    known: NodeId | None = None,
) -> Discovery:
    sources = Sources(
        Seeds(tuple(f"mem://{seed}" for seed in seeds), (names or Names()).resolve, random.Random(1), lambda: WALL),
        registry,
        lan,
        book or AddressBook(),
    )
    return Discovery(node.mesh, Introduced(introduced, known), sources, file=file)


def linked(fleet: Fleet, name: str) -> set[str]:
    """Return the names of the nodes that one is linked to."""
    names = {node.id: other for other, node in fleet.nodes.items()}
    return {names[node] for node in fleet[name].mesh.peers}


def after_half_a_minute(_: str) -> float:
    return 30.0


async def test_a_first_look_links_every_seed_and_introduces_it(autojump_clock: MockClock) -> None:
    introduced: list[NodeId] = []
    async with open_meshes("a", "b", "c", linked=False) as fleet:
        await discovery(fleet["a"], "b", "c", introduced=introduced).look()
        assert linked(fleet, "a") == {"b", "c"}
        assert set(introduced) == {fleet["b"].id, fleet["c"].id}


async def test_a_seed_that_comes_up_later_is_found_and_missing_ones_are_said_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_meshes("a", linked=False) as fleet, trio.open_nursery() as nursery:
        looking = discovery(fleet["a"], "b")
        await looking.look()
        nursery.start_soon(looking.run)
        await trio.sleep(100)
        assert [record.getMessage() for record in caplog.records] == [
            "cannot connect to mem://b: connection refused; trying again"
        ]
        async with fleet.open_node("b"):
            caplog.clear()
            caplog.set_level("INFO")
            await trio.sleep(PAUSES[AddressSource.SEED][-1] + 0.1)
            assert linked(fleet, "a") == {"b"}
            assert "mem://b is back" in [record.getMessage() for record in caplog.records]
            nursery.cancel_scope.cancel()


async def test_a_name_stands_for_every_address_behind_it(autojump_clock: MockClock) -> None:
    names = Names(all=("mem://a", "mem://b", "mem://c"))
    async with open_meshes("a", "b", "c", linked=False) as fleet:
        await discovery(fleet["a"], "all", names=names).look()
        assert linked(fleet, "a") == {"b", "c"}
        assert not fleet["a"].mesh.refusals, "it does not dial itself"


async def test_a_name_is_looked_up_again_when_nothing_behind_it_answers(autojump_clock: MockClock) -> None:
    names = Names(all=("mem://gone",))
    async with open_meshes("a", "b", linked=False) as fleet, trio.open_nursery() as nursery:
        looking = discovery(fleet["a"], "all", names=names)
        await looking.look()
        nursery.start_soon(looking.run)
        names.names["mem://all"] = ()
        await trio.sleep(20)
        names.names["mem://all"] = ("mem://b",)
        await trio.sleep(PAUSES[AddressSource.SEED][-1] + 0.1)
        assert linked(fleet, "a") == {"b"}
        nursery.cancel_scope.cancel()


async def test_a_seed_whose_node_was_lost_is_tried_again(autojump_clock: MockClock) -> None:
    async with open_meshes("a", linked=False) as fleet, trio.open_nursery() as nursery:
        looking = discovery(fleet["a"], "b")
        async with fleet.open_node("b"):
            await looking.look()
            assert linked(fleet, "a") == {"b"}
        nursery.start_soon(looking.run)
        await trio.sleep(60)
        assert not fleet["a"].mesh.peers
        async with fleet.open_node("b"):
            await trio.sleep(PAUSES[AddressSource.SEED][-1] + 0.1)
            assert linked(fleet, "a") == {"b"}
            nursery.cancel_scope.cancel()


async def test_an_address_of_another_realm_is_refused_counted_and_told_in_one_line(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_meshes("a", "b", linked=False) as fleet, fleet.open_node("foreign", realm=TestRealm(99)):
        with trio.move_on_after(60):
            looking = discovery(fleet["a"], "foreign", "b")
            await looking.look()
            assert linked(fleet, "a") == {"b"}, "the others are not touched"
            await looking.run()
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert "mem://foreign" in lines[0]
        assert linked(fleet, "a") == {"b"}
        assert linked(fleet, "foreign") == set()
        assert any("handshake" in reason for reason in fleet["a"].mesh.refusals)


async def test_announced_nodes_are_dialled_and_those_whose_process_is_gone_withdrawn(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    registry = Registry(tmp_path)
    async with open_meshes("a", "b", linked=False) as fleet:
        registry.announce(fleet["a"].id, (fleet["a"].url,))
        registry.announce(fleet["b"].id, (fleet["b"].url,))
        registry.announce(NodeId("e" * 32), ("mem://gone",))
        await discovery(fleet["a"], registry=registry).look()
        assert linked(fleet, "a") == {"b"}
        assert registry.entries().keys() == {fleet["a"].id, fleet["b"].id}


@pytest.mark.parametrize("withdrawn", [True, False], ids=["left", "killed"])
async def test_an_announced_node_that_goes_while_it_is_dialled_is_a_warning_unless_it_left(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, tmp_path: Path, withdrawn: bool
) -> None:
    registry = Registry(tmp_path)
    async with open_meshes("a", "b", linked=False) as fleet, trio.open_nursery() as nursery:
        registry.announce(fleet["b"].id, (fleet["b"].url,))
        fleet["b"].transport.pause()
        nursery.start_soon(discovery(fleet["a"], registry=registry).look)
        await trio.sleep(0.5)
        if withdrawn:
            assert registry.withdraw(fleet["b"].id)
        fleet["b"].transport.close()
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == (0 if withdrawn else 1)
    assert all("mem://b broke during the handshake" in line for line in said)


async def test_more_announced_nodes_than_are_dialled_at_once_all_have_their_turn(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    registry = Registry(tmp_path)
    names = [f"n{number}" for number in range(12)]
    async with open_meshes("a", *names, linked=False) as fleet:
        for name in names:
            registry.announce(fleet[name].id, (fleet[name].url,))
        with trio.move_on_after(10):
            await discovery(fleet["a"], registry=registry).run()
        assert linked(fleet, "a") == set(names)


async def test_who_is_announced_while_a_node_runs_has_two_seconds_to_come_by_itself(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    registry = Registry(tmp_path)
    async with open_meshes("a", "b", linked=False) as fleet, trio.open_nursery() as nursery:
        nursery.start_soon(discovery(fleet["a"], registry=registry).run)
        await trio.sleep(1.0)
        registry.announce(fleet["b"].id, (fleet["b"].url,))
        await trio.sleep(2.5)
        assert linked(fleet, "a") == set()
        await trio.sleep(1.0)
        assert linked(fleet, "a") == {"b"}
        nursery.cancel_scope.cancel()


async def test_an_announced_node_that_the_membership_looks_after_is_not_dialled(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    registry = Registry(tmp_path)
    async with open_meshes("a", "b", "c", linked=False) as fleet:
        for name in "abc":
            registry.announce(fleet[name].id, (fleet[name].url,))
        looking = discovery(fleet["a"], registry=registry, known=fleet["b"].id)
        await looking.look()
        assert linked(fleet, "a") == {"c"}


async def test_a_node_that_says_a_seed_is_its_own_address_does_not_keep_that_from_being_dialled(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "liar", linked=False) as fleet, trio.open_nursery() as nursery:
        peer = await fleet["liar"].mesh.connect(["mem://a"])
        await trio.sleep(1)
        peer = fleet["a"].peer(fleet["liar"])
        peer.addresses = (*peer.addresses, "mem://b")
        nursery.start_soon(discovery(fleet["a"], "b").run)
        await trio.sleep(10)
        async with fleet.open_node("b"):
            await trio.sleep(PAUSES[AddressSource.SEED][-1] + 0.1)
            assert linked(fleet, "a") == {"liar", "b"}
            nursery.cancel_scope.cancel()


async def test_a_seed_at_which_this_node_has_reached_a_linked_one_is_not_dialled_once_more(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b", linked=False) as fleet:
        await fleet["b"].mesh.connect(["mem://a"])  # so that this one dials back
        await trio.sleep(1)
        session = fleet["a"].peer(fleet["b"]).session
        with trio.move_on_after(60):
            await discovery(fleet["a"], "b").run()
        assert fleet["a"].peer(fleet["b"]).session is session


async def test_what_is_announced_beyond_what_is_followed_is_counted(autojump_clock: MockClock) -> None:
    lan = LocalNetwork(realm_mark(REALM), "own")
    lan.leave_out(5)
    async with open_meshes("a", linked=False) as fleet:
        looking = discovery(fleet["a"], lan=lan)
        for _ in range(2):
            await looking.look()
        assert fleet["a"].mesh.refusals["announcement on the local network, of too many"] == 5


async def test_what_the_local_network_announces_is_dialled(autojump_clock: MockClock) -> None:
    lan = LocalNetwork(realm_mark(REALM), "own")
    async with open_meshes("a", "b", "c", linked=False) as fleet, trio.open_nursery() as nursery:
        looking = discovery(fleet["a"], lan=lan)

        async def announce_soon() -> None:
            await trio.sleep(0.2)
            lan.found(f"{realm_mark(REALM)}-b-0", ("mem://b",))

        nursery.start_soon(announce_soon)
        await looking.look()
        assert linked(fleet, "a") == {"b"}
        nursery.start_soon(looking.run)
        lan.found(f"{realm_mark(REALM)}-c-0", ("mem://c",))
        await trio.sleep(3)
        assert linked(fleet, "a") == {"b", "c"}
        nursery.cancel_scope.cancel()


async def test_a_node_that_finds_nobody_else_asks_where_others_were_before(autojump_clock: MockClock) -> None:
    book = AddressBook()
    book.saw(["mem://gone", "mem://b"], WALL)
    async with open_meshes("a", "b", linked=False) as fleet:
        fleet.network.partition(["a"], ["c"])
        began = trio.current_time()
        await discovery(fleet["a"], "missing", book=book).look()
        assert linked(fleet, "a") == {"b"}
        assert trio.current_time() < began + 1, "the first to answer is enough"


async def test_addresses_of_linked_nodes_are_written_down_and_found_by_the_next_node(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    file = AddressFile(tmp_path / "book")
    async with open_meshes("a", "b", linked=False) as fleet:
        looking = discovery(fleet["a"], "b", file=file)
        await looking.look()
        looking.note()
        await looking.save()
        book = AddressBook()
        file.load(book, WALL)
        assert book.urls() == ["mem://b"]
        async with fleet.open_node("later"):
            await discovery(fleet["later"], book=book).look()
            assert linked(fleet, "later") == {"b"}


async def test_a_partition_in_which_everybody_was_replaced_ends_without_a_seed(autojump_clock: MockClock) -> None:
    async with open_meshes("a", linked=False) as fleet, trio.open_nursery() as nursery:
        looking = discovery(fleet["a"], "b")
        async with fleet.open_node("b"):
            await looking.look()
            nursery.start_soon(looking.run)
            await trio.sleep(120)
        looking._seeds = Seeds((), Names().resolve, random.Random(1), lambda: WALL)  # what remains is the book
        fleet.network.partition(["a"], ["b"])
        await trio.sleep(3600)
        assert not fleet["a"].mesh.peers
        async with fleet.open_node("b"):
            await trio.sleep(600)
            assert not fleet["a"].mesh.peers
            fleet.network.heal()
            await trio.sleep(PAUSES[AddressSource.BOOK][-1] + 10)
            assert linked(fleet, "a") == {"b"}
            nursery.cancel_scope.cancel()


async def test_what_killed_processes_left_behind_does_not_hide_who_is_there(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    registry = Registry(tmp_path)
    async with open_meshes("a", "b", linked=False) as fleet:
        for number in range(100):
            registry.announce(NodeId(f"{number:032x}"), (f"mem://gone-{number}",))
        registry.announce(fleet["b"].id, (fleet["b"].url,))
        await discovery(fleet["a"], registry=registry).look()
        assert linked(fleet, "a") == {"b"}


async def test_the_remains_of_a_killed_process_that_cannot_be_removed_harm_nobody(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    registry = Registry(tmp_path)
    async with open_meshes("a", "b", linked=False) as fleet:
        (tmp_path / ("e" * 32)).mkdir()  # in the place of a socket
        registry.announce(NodeId("e" * 32), ("mem://gone",))
        registry.announce(fleet["b"].id, (fleet["b"].url,))
        looking = discovery(fleet["a"], registry=registry)
        await looking.look()
        with trio.move_on_after(60):
            await looking.run()
        assert linked(fleet, "a") == {"b"}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_of_a_name_that_also_stands_for_a_host_that_is_down_nothing_is_said(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Seeds, "asked_again", staticmethod(after_half_a_minute))  # so that it is looked up now and then
    names = Names(all=("mem://gone", "mem://b"))
    async with open_meshes("a", "b", linked=False) as fleet:
        looking = discovery(fleet["a"], "all", names=names)
        await looking.look()
        with trio.move_on_after(600):
            await looking.run()
        assert linked(fleet, "a") == {"b"}
        assert len(names.asked) > 10
        assert not warnings(caplog)


async def test_an_address_of_another_realm_behind_a_name_is_told_once_however_often_it_is_tried(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Seeds, "asked_again", staticmethod(after_half_a_minute))
    names = Names(all=("mem://foreign", "mem://b"))
    async with open_meshes("a", "b", linked=False) as fleet, fleet.open_node("foreign", realm=TestRealm(99)):
        looking = discovery(fleet["a"], "all", names=names)
        await looking.look()
        with trio.move_on_after(600):
            await looking.run()
        assert linked(fleet, "a") == {"b"}
        assert len(names.asked) > 10
        assert len(warnings(caplog)) == 1
        assert "mem://foreign" in warnings(caplog)[0]


async def test_all_of_the_address_book_is_tried_before_a_node_is_alone(autojump_clock: MockClock) -> None:
    book = AddressBook()
    book.saw([f"mem://gone-{number}" for number in range(100)], WALL)
    book.saw(["mem://z"], WALL - 1000)
    async with open_meshes("a", "z", linked=False) as fleet:
        await discovery(fleet["a"], book=book).look()
        assert linked(fleet, "a") == {"z"}


async def test_an_entry_of_a_process_that_was_started_anew_at_its_address_is_no_trouble(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(tmp_path)
    async with open_meshes("a", "b", linked=False) as fleet:
        registry.announce(NodeId("e" * 32), (fleet["b"].url,))
        registry.announce(fleet["b"].id, (fleet["b"].url,))
        await discovery(fleet["a"], registry=registry).look()
        assert linked(fleet, "a") == {"b"}
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
