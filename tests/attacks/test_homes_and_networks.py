"""Homes that vanish, are shared, or are used twice, and machines with odd networks, under nodes that run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.cluster.addresses import split_url
from iris.cluster.discovery import return_address
from iris.cluster.discovery.address_book import AddressBook, AddressFile
from iris.security.files.credential_file import save_credential
from iris.security.files.realm_files import save_revocations
from iris.testing import inspect
from tests.node.opening.test_opening import LOOPBACK, OUTSIDE, World
from tests.node.opening.test_opening_order import Town
from tests.node.opening.test_shortages import Threads
from tests.support.realms import WALL

pytestmark = pytest.mark.long

# ruff: noqa: ASYNC240 -- these files are small


@pytest.fixture
def home(tmp_path: Path, own_home: None) -> Path:
    return tmp_path / "home"


@pytest.mark.parametrize("what", ["removed", "a file", "a link", "another mode"])
async def test_a_node_whose_home_vanishes_serves_goes_by_new_lists_and_ends(
    autojump_clock: MockClock,
    tmp_path: Path,
    home: Path,
    what: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", Threads().run_sync)
    town = Town(tmp_path)
    environment = town.world.environment(lan=None)
    opening = partial(iris.open_node, environment=environment)
    with trio.fail_after(2000):
        async with (
            opening(credential=town.shop, listen=[OUTSIDE]) as one,
            one.subscribe("news") as events,
            opening(credential=town.evil, listen=[LOOPBACK], revocations=tmp_path / "none") as evil,
        ):
            assert len(one.statistics().links) == 1
            shutil.rmtree(home)
            if what == "a file":
                home.write_text("no directory")
            elif what == "a link":
                home.symlink_to(tmp_path / "nowhere")
            elif what == "another mode":
                home.mkdir(mode=0o777)
                home.chmod(0o777)
            await trio.sleep(700)
            await evil.publish("news", 1)
            assert (await anext(events)).payload == 1
            if home.is_symlink() or home.is_file():
                home.unlink()
            elif home.exists():
                shutil.rmtree(home)
            home.mkdir(mode=0o700)
            revocations = town.revocations
            save_revocations(revocations, town.list)
            await trio.sleep(60)
            assert evil.id not in inspect(one).peers
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) < 20, told


async def test_two_nodes_of_one_program_with_one_home_remember_what_each_has_met(
    autojump_clock: MockClock, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", Threads().run_sync)
    one, two, both = AddressBook(), AddressBook(), AddressBook()
    place = tmp_path / "addresses.json"
    files = [AddressFile(place), AddressFile(place)]
    for file, book in zip(files, (one, two), strict=True):
        file.load(book, WALL)
    one.saw(["tcp://192.0.2.1:1"], WALL)
    two.saw(["tcp://192.0.2.2:1"], WALL)
    for file, book in zip(files, (one, two), strict=True):
        file.save(book, WALL)
    one.saw(["tcp://192.0.2.3:1"], WALL + 1)
    files[0].save(one, WALL + 1)
    AddressFile(place).load(both, WALL)
    assert {"tcp://192.0.2.1:1", "tcp://192.0.2.2:1", "tcp://192.0.2.3:1"} <= {*both.urls()}
    json.loads(place.read_text())


async def test_a_document_that_two_nodes_of_a_program_save_in_one_file_stays_whole(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", Threads().run_sync)
    from iris.testing import open_network

    path = tmp_path / "prices"
    async with open_network() as network, network.open_node("a") as one, network.open_node("b") as two:
        async with one.state("prices", path=path) as here, two.state("prices", path=path) as there:
            for number in range(20):
                here[f"a{number}"] = there[f"b{number}"] = number
                await trio.sleep(1)
        async with one.state("prices", path=path) as here:
            assert len(here) == 40


ALONE = """
import logging, subprocess, sys, trio, iris
logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
logging.basicConfig(level=logging.WARNING)
async def main():
    with trio.fail_after(30):
        async with (
            iris.open_node(credential=sys.argv[1], listen=["tcp://10.9.0.1:0"]) as one,
            iris.open_node(credential=sys.argv[1], listen=["tcp://10.9.0.1:0"], seeds=one.addresses) as two,
            one.subscribe("a") as events,
        ):
            await two.publish("a", 1)
            assert (await anext(events)).payload == 1
            subprocess.run(sys.argv[2], shell=True, check=True)
            await trio.sleep(5)
            await one.publish("a", 2)
            assert (await anext(events)).payload == 2
    print("done")
trio.run(main)
"""

VETH = "ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up; ip link set d0 up; "
ADDRESS = "ip addr add 10.9.0.1/24 dev d0"
NETWORKS = {
    "no multicast": (f"{VETH} ip link set d0 multicast off; {ADDRESS}", "true"),
    "goes down": (VETH + ADDRESS, "ip link set d0 down"),
    "address leaves": (VETH + ADDRESS, "ip addr del 10.9.0.1/24 dev d0; ip addr add 10.9.0.2/24 dev d0"),
    "no IPv6": (f"sysctl -qw net.ipv6.conf.all.disable_ipv6=1; {VETH} {ADDRESS}", "ip link del d0"),
}
"""How the network is made, and what becomes of it."""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
@pytest.mark.parametrize("network", NETWORKS)
def test_nodes_find_each_other_where_the_network_carries_no_multicast(tmp_path: Path, home: Path, network: str) -> None:
    import os
    import time

    from iris.security.authority.issuing import issue_cluster
    from iris.security.authority.realm_root import create_realm

    save_credential(
        tmp_path / "shop.json",
        issue_cluster(create_realm(os.urandom), "shop", entropy=os.urandom, wall_now=time.time())[1],  # noqa: TID251
    )
    made, later = NETWORKS[network]
    (tmp_path / "alone.py").write_text(ALONE)
    script = f"{made}; exec {sys.executable} {tmp_path}/alone.py {tmp_path}/shop.json '{later}'"
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("needs root")
    assert done.stdout == "done\n", done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) < 10, done.stderr


async def test_a_node_whose_address_changes_all_the_time_keeps_one_socket_for_each(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(return_address, "LOOK", 0.005)
    world = World(tmp_path)
    address: list[str | None] = ["127.0.0.2"]

    async def source(url: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return f"tcp://{address[0]}:0" if split_url(url) is not None and address[0] is not None else None

    short = Path(tempfile.mkdtemp(prefix="iris", dir=tmp_path.parent))
    there = iris.Environment(directory=None, lan=None, variables={}, wall_clock=lambda: WALL)

    def directory(_: str) -> Path:
        return short

    here = structs.replace(there, directory=directory, source=source)
    with trio.fail_after(60):
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(
                iris.open_node(credential=world.shop, listen=["tcp://127.0.0.1:0"], environment=there)
            )
            shop = await stack.enter_async_context(
                iris.open_node(credential=world.shop, seeds=hub.addresses, environment=here)
            )
            await stack.enter_async_context(shop.join("shop", iris.Service("shop")))  # from here on it listens
            events = await stack.enter_async_context(hub.subscribe("a"))
            before = len(list(Path("/proc/self/fd").iterdir()))
            for number in range(50):
                # Some cannot be listened at.
                address[0] = [None, "127.0.0.3", "198.51.100.1", "127.0.0.4", "127.0.0.2"][number % 5]
                await trio.sleep(0.011)
                await shop.publish("a", number)
                assert (await anext(events)).payload == number
            address[0] = "127.0.0.4"
            await trio.sleep(0.3)
            assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
            assert [parts[1] for url in shop.addresses if (parts := split_url(url))] == ["127.0.0.4"]
            async with iris.open_node(credential=world.shop, seeds=shop.addresses, environment=there, client=True):
                pass
