"""``open_node``: what each option does, what each mistake is called, and that no mistake leaves anything behind."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

import iris
from iris.cluster.discovery.local_network import LocalNetwork
from iris.kernel.tasks import HostLoop
from iris.kernel.transport.memory import MemoryIncoming, MemoryNetwork, MemoryOutgoing, MemoryTransport
from iris.kernel.transport.port import ConnectionObserver, ConnectionUser, Permit
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm
from iris.security.files.credential_file import CredentialWatch, save_credential
from iris.security.identity.credential import Credential
from tests.support.realms import WALL, seeded_entropy

OUTSIDE = "tcp://10.1.2.3:7000"
LOOPBACK = "tcp://127.0.0.1:7000"


class Wires:
    """A transport for any URL, on a network in memory."""

    def __init__(self, inner: MemoryTransport) -> None:
        self.inner = inner

    async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
        bound = await self.inner.listen([f"mem://{url}" for url in urls])
        return tuple(url.removeprefix("mem://") for url in bound)

    async def dial(self, url: str, user: ConnectionUser, permit: Permit | None = None) -> MemoryOutgoing:
        return await self.inner.dial(f"mem://{url}", user, permit)

    async def accept_reverse(self, token: str, user: ConnectionUser) -> MemoryOutgoing:
        return await self.inner.accept_reverse(token, user)

    def dial_reverse(self, url: str, token: str, user: ConnectionUser) -> MemoryIncoming:
        return self.inner.dial_reverse(f"mem://{url}", token, user)

    def receive_nowait(self) -> bytes | None:
        return self.inner.receive_nowait()

    async def wait_readable(self) -> None:
        await self.inner.wait_readable()

    def receive_in(self, host: HostLoop, readable: Callable[[], None]) -> bool:
        return self.inner.receive_in(host, readable)

    def interrupt(self) -> None:
        self.inner.interrupt()

    def observe(self, observer: ConnectionObserver) -> None:
        self.inner.observe(observer)

    @property
    def held(self) -> int:
        return self.inner.held

    def source(self) -> int:
        return self.inner.source()

    def hang_up(self, connection: int) -> None:
        self.inner.hang_up(connection)

    def close(self) -> None:
        self.inner.close()


class World:
    """A machine on which nodes are opened, and what they have taken from it."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self.network = MemoryNetwork()
        self.transports: list[Wires] = []
        self.looked_up: list[str] = []
        self.boards: list[tuple[str, str, tuple[str, ...]]] = []
        self.entropy = seeded_entropy(5)
        realm = create_realm(self.entropy)
        self.realm, self.shop = issue_cluster(realm, "shop", entropy=self.entropy, wall_now=WALL)

    def environment(self, **changes: Any) -> iris.Environment:
        given = iris.Environment(
            transport=self.transport,
            directory=self.directory,
            resolve=self.resolve,
            lan=self.open_lan,
            entropy=self.entropy,
            wall_clock=lambda: WALL,
            random=random.Random(1),
        )
        return structs.replace(given, **changes)

    def transport(self, config: iris.Config) -> Wires:
        assert config.max_payload > 0
        made = Wires(self.network.transport(f"host-{len(self.transports)}"))
        self.transports.append(made)
        return made

    def directory(self, fingerprint: str) -> Path:
        place = self.runtime / fingerprint
        place.mkdir(parents=True, exist_ok=True)
        return place

    async def resolve(self, url: str) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        self.looked_up.append(url)
        return (url,)

    @asynccontextmanager
    async def open_lan(self, fingerprint: str, own: str, urls: tuple[str, ...]) -> AsyncIterator[LocalNetwork]:
        self.boards.append((fingerprint, own, urls))
        yield LocalNetwork(fingerprint, own)
        await trio.lowlevel.checkpoint()

    def announced(self) -> list[dict[str, Any]]:
        return [json.loads(entry.read_text()) for entry in sorted(self.runtime.glob("*/*.node"))]

    @property
    def is_untouched(self) -> bool:
        return not self.announced() and all(transport.inner.closed for transport in self.transports)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    return World(tmp_path / "run")


def save(directory: Path, credential: Credential, mode: int = 0o600) -> Path:
    file = directory / "credential.json"
    save_credential(file, credential)
    file.chmod(mode)
    return file


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": ""}, "'' is not a cluster name"),
        ({"name": "a b"}, "'a b' is not a cluster name"),
        ({"name": "x" * 129}, "is not a cluster name: use 1 to 128"),
        ({"site": ""}, "'' is not a site name"),
        ({"site": "e/u"}, "'e/u' is not a site name"),
        ({"listen": ["tcp://"]}, "tcp://"),
        ({"listen": ["http://127.0.0.1:1"]}, "http://127.0.0.1:1"),
        ({"listen": ["127.0.0.1:1"]}, "127.0.0.1:1"),
        ({"listen": [OUTSIDE]}, f"cannot listen at {OUTSIDE}: use a loopback address, or a credential"),
        ({"listen": [LOOPBACK, OUTSIDE]}, f"cannot listen at {OUTSIDE}"),
        ({"listen": ["tcp://0.0.0.0:1"]}, "this machine only"),
        ({"listen": ["tcp://*:1"]}, "tcp://*:1"),
        ({"seeds": [""]}, "''"),
        ({"seeds": ["tcp://host:99999"]}, "tcp://host:99999"),
        ({"credential": "missing.json"}, "credential missing.json: No such file or directory"),
        ({"credential": Path("/dev/null")}, "/dev/null: not a plain file"),
    ],
)
async def test_what_cannot_be_used_is_named_and_nothing_is_begun(
    world: World, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(iris.ConfigError) as caught:
        async with iris.open_node(**options, environment=world.environment()):
            raise AssertionError("the block was entered")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert world.is_untouched


async def test_a_credential_says_the_name_and_no_other_may_be_said(world: World) -> None:
    with pytest.raises(iris.ConfigError, match="for the cluster 'shop' and not for 'store': leave the name out"):
        async with iris.open_node("store", credential=world.shop, environment=world.environment()):
            pass
    assert world.is_untouched
    async with iris.open_node("shop", credential=world.shop, environment=world.environment()) as node:
        assert node.name == "shop"


async def test_a_credential_that_others_may_read_is_refused_with_the_command_that_mends_it(
    world: World, tmp_path: Path
) -> None:
    file = save(tmp_path, world.shop, mode=0o640)
    with pytest.raises(iris.ConfigError, match="chmod 600"):
        async with iris.open_node(credential=file, environment=world.environment()):
            pass
    assert world.is_untouched


@pytest.mark.parametrize("days", [-400, 400])
async def test_a_credential_is_of_no_use_before_and_after_its_time(world: World, days: int) -> None:
    environment = world.environment(wall_clock=lambda: WALL + 86_400.0 * days)
    with pytest.raises(iris.ConfigError, match="shop"):
        async with iris.open_node(credential=world.shop, environment=environment):
            pass
    assert world.is_untouched


async def test_an_address_that_is_taken_ends_the_second_node_and_not_the_first(world: World) -> None:
    async with iris.open_node(credential=world.shop, listen=[OUTSIDE], environment=world.environment()) as node:
        with pytest.raises(iris.ConfigError, match=f"cannot listen at .*{OUTSIDE}: the address is in use"):
            async with iris.open_node(credential=world.shop, listen=[OUTSIDE], environment=world.environment()):
                pass
        first, second = world.transports
        assert second.inner.closed
        assert not first.inner.closed
        assert OUTSIDE in node.addresses
        assert len(world.announced()) == 1
    assert world.is_untouched


async def test_no_directory_is_left_of_a_realm_without_nodes(world: World) -> None:
    async with iris.open_node(credential=world.shop, environment=world.environment()):
        async with iris.open_node(credential=world.shop, environment=world.environment()):
            assert len(world.announced()) == 2
        assert len(world.announced()) == 1
    assert list(world.runtime.iterdir()) == []


async def test_a_node_that_starts_while_the_last_one_sweeps_makes_the_directory_again(world: World) -> None:
    """The directory vanishes between being made and being listened in, three times."""
    swept: list[Path] = []

    class Swept(Wires):
        async def listen(self, urls: Sequence[str]) -> tuple[str, ...]:
            place = world.runtime / world.shop.realm_id
            if len(swept) < 3:
                place.rmdir()
                swept.append(place)
            if not place.is_dir():
                raise iris.ConfigError(f"cannot listen at {urls[0]}: no such file or directory")
            return await super().listen(urls)

    def transport(config: iris.Config) -> Swept:
        return Swept(world.transport(config).inner)

    environment = world.environment(transport=transport)
    async with iris.open_node(credential=world.shop, environment=environment):
        assert len(swept) == 3
        assert len(world.announced()) == 1


async def test_a_place_for_meeting_that_cannot_be_made_is_the_error(world: World) -> None:
    def refuse(fingerprint: str) -> Path:
        raise iris.ConfigError(f"runtime directory {fingerprint}: belongs to user 0")

    with pytest.raises(iris.ConfigError, match="belongs to user 0"):
        async with iris.open_node(credential=world.shop, environment=world.environment(directory=refuse)):
            pass
    assert not world.transports


# -- who it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cluster"), [(None, "local"), ("orders", "orders")])
async def test_without_a_credential_it_is_of_the_users_own_realm_by_the_name_that_is_given(
    world: World, name: str | None, cluster: str
) -> None:
    async with iris.open_node(name, environment=world.environment()) as node:
        assert (node.name, node.site) == (cluster, "")
        first = node.realm
    async with iris.open_node(environment=world.environment()) as node:
        assert node.realm == first, "one realm for each user, made once"


@pytest.mark.parametrize("form", ["value", "path", "str", "watch"])
async def test_a_credential_may_be_given_in_any_form(world: World, tmp_path: Path, form: str) -> None:
    file = save(tmp_path, world.shop)
    given: Any = {"value": world.shop, "path": file, "str": str(file), "watch": CredentialWatch(file)}[form]
    async with iris.open_node(credential=given, environment=world.environment()) as node:
        assert (node.name, node.realm) == ("shop", world.shop.realm_id)


async def test_each_boot_is_another_node(world: World) -> None:
    ids: set[str] = set()
    for _ in range(3):
        async with iris.open_node(credential=world.shop, environment=world.environment()) as node:
            ids.add(node.id)
    assert len(ids) == 3


# -- where it listens, and where it says so ------------------------------------------------------------------


async def test_without_a_word_it_listens_for_this_machine_only(world: World) -> None:
    async with iris.open_node(environment=world.environment()) as node:
        assert node.addresses == (f"ipc://{world.runtime / node.realm / node.id}",)


async def test_it_listens_where_it_is_told_and_for_this_machine_besides(world: World) -> None:
    listen = [OUTSIDE, "ws://10.1.2.3:80/iris"]
    async with iris.open_node(credential=world.shop, listen=listen, environment=world.environment()) as node:
        ipc, *rest = node.addresses
        assert rest == listen
        assert ipc.startswith("ipc://")


async def test_when_it_serves_it_listens_at_the_address_that_faces_a_remote_seed(world: World) -> None:
    seeds = ["ipc:///elsewhere", "tcp://127.0.0.1:9999"]
    async with iris.open_node(credential=world.shop, seeds=seeds, environment=world.environment()) as node:
        assert len(node.addresses) == 1, "who serves nothing opens no port"
        async with node.join("shop", iris.Service("shop")):
            back = list(node.addresses)
            assert [url.rpartition(":")[0] for url in back[1:]] == ["tcp://127.0.0.1"]
        async with node.join("shop", iris.Service("shop")):
            assert list(node.addresses) == back, "it stays there"
    async with (
        iris.open_node(credential=world.shop, seeds=seeds[:1], environment=world.environment()) as node,
        node.join("shop", iris.Service("shop")),
    ):
        assert len(node.addresses) == 1, "a seed on this machine reaches it by ipc"


@pytest.mark.parametrize("options", [{"client": True}, {"dial_only": True}, {"listen": [OUTSIDE]}, {}])
async def test_the_variable_for_listening_is_for_who_serves_and_has_no_word_of_its_own(
    world: World, options: dict[str, Any]
) -> None:
    listen = "tcp://127.0.0.1:0 ws://127.0.0.1:0/iris"
    environment = structs.replace(world.environment(), variables={"IRIS_LISTEN": listen})
    async with iris.open_node(credential=world.shop, environment=environment, **options) as node:
        before = node.addresses
        assert not any("127.0.0.1" in url for url in before)
        if options == {"client": True}:
            return
        async with node.join("shop", iris.Service("shop")):
            own = [url for url in node.addresses if url not in before]
            assert [url.rpartition(":")[0] for url in own] == ([] if options else ["tcp://127.0.0.1", "ws://127.0.0.1"])


async def test_a_variable_for_listening_that_cannot_be_used_is_named(world: World) -> None:
    def environment(listen: str) -> iris.Environment:
        return structs.replace(world.environment(), variables={"IRIS_LISTEN": listen})

    for credential, listen, text in (
        (world.shop, "nonsense", "IRIS_LISTEN: .*nonsense"),
        (world.shop, "ws://10.1.2.3:80/elsewhere", "IRIS_LISTEN: .*no other path"),
        (None, OUTSIDE, "for this machine only and cannot listen at"),
    ):
        with pytest.raises(iris.ConfigError, match=text):
            async with iris.open_node(credential=credential, environment=environment(listen)):
                pass
    async with (
        iris.open_node(credential=world.shop, listen=[OUTSIDE], environment=world.environment()),
        iris.open_node(credential=world.shop, environment=environment(OUTSIDE)) as second,
    ):
        for _ in range(2):
            with pytest.raises(iris.ConfigError, match=f"cannot listen at .*{OUTSIDE}: the address is in use"):
                async with second.join("shop", iris.Service("shop")):
                    pass


@pytest.mark.parametrize("site", [None, "eu"])
async def test_it_is_in_the_registry_while_it_is_up_with_its_site(world: World, site: str | None) -> None:
    environment = world.environment()
    async with iris.open_node(credential=world.shop, listen=[OUTSIDE], site=site, environment=environment):
        (entry,) = world.announced()
        assert entry["process"] == os.getpid()
        assert entry["site"] == (site or "")
        assert OUTSIDE in entry["addresses"]
    assert world.is_untouched


async def test_nodes_of_one_machine_find_each_other_and_part_in_peace(world: World) -> None:
    async with iris.open_node(credential=world.shop, environment=world.environment()) as one:
        async with iris.open_node(credential=world.shop, environment=world.environment()) as two:
            assert set(one.statistics().links) == {two.id}
            assert set(two.statistics().links) == {one.id}
            assert len(world.announced()) == 2
        assert len(world.announced()) == 1
    assert not world.looked_up


async def test_nodes_of_two_sites_on_one_machine_pass_each_other_by(world: World) -> None:
    environment = world.environment
    async with (
        iris.open_node(credential=world.shop, site="eu", environment=environment()) as one,
        iris.open_node(credential=world.shop, site="us", environment=environment()) as two,
    ):
        assert not one.statistics().links
        assert not two.statistics().links


# -- whom it looks for ---------------------------------------------------------------------------------------


async def test_seeds_of_the_call_and_of_the_credential_are_tried_once_each(world: World) -> None:
    credential = structs.replace(world.shop, seeds=("tcp://10.0.0.1:1", "tcp://10.0.0.2:1"))
    seeds = ["tcp://10.0.0.3:1", "tcp://10.0.0.1:1"]
    environment = world.environment(directory=None)
    async with iris.open_node(credential=credential, seeds=seeds, listen=[LOOPBACK], environment=environment):
        assert sorted(world.looked_up) == ["tcp://10.0.0.1:1", "tcp://10.0.0.2:1", "tcp://10.0.0.3:1"]


async def test_the_local_network_is_told_a_hash_a_random_name_and_what_others_can_reach(world: World) -> None:
    listen = [OUTSIDE, LOOPBACK]
    async with iris.open_node(credential=world.shop, listen=listen, environment=world.environment()) as node:
        ((fingerprint, own, urls),) = world.boards
        assert fingerprint == node.realm
        assert urls == (OUTSIDE,)
        assert len(own) == 8
        assert own not in node.id


@pytest.mark.parametrize(
    "options",
    [{"lan": False, "listen": [OUTSIDE]}, {"listen": [LOOPBACK]}, {}],
    ids=["not wanted", "loopback only", "ipc only"],
)
async def test_the_local_network_is_told_nothing_if_it_is_not_wanted_or_cannot_reach_it(
    world: World, options: dict[str, Any]
) -> None:
    async with iris.open_node(credential=world.shop, environment=world.environment(), **options):
        pass
    async with iris.open_node(environment=world.environment()):
        pass
    assert world.boards == []


# -- what it leaves on disk ----------------------------------------------------------------------------------


def modes(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): f"{path.stat().st_mode & 0o777:o}"
        for path in home.rglob("*")
        if path.suffix != ".lock"
    }


async def test_files_are_private_and_named_by_the_realm(world: World) -> None:
    home = Path(os.environ["IRIS_HOME"])
    async with iris.open_node(credential=world.shop, listen=[OUTSIDE], environment=world.environment()):
        assert modes(home) == {"revocations": "700", "addresses": "700"}
        async with iris.open_node(credential=world.shop, environment=world.environment()):
            pass
    assert modes(home) == {
        "revocations": "700",
        "addresses": "700",
        f"addresses/{world.shop.realm_id}.json": "600",
    }


async def test_a_node_of_the_local_realm_keeps_no_addresses(world: World) -> None:
    home = Path(os.environ["IRIS_HOME"])
    async with (
        iris.open_node(environment=world.environment()),
        iris.open_node(environment=world.environment()),
    ):
        pass
    assert not (home / "addresses").exists()


async def test_a_place_for_revocations_that_is_given_is_used_instead_of_the_default(
    world: World, tmp_path: Path
) -> None:
    for given in (tmp_path / "list", str(tmp_path / "list")):
        async with iris.open_node(credential=world.shop, revocations=given, environment=world.environment()):
            pass
    assert not (Path(os.environ["IRIS_HOME"]) / "revocations").exists()
    assert not (tmp_path / "list").exists(), "there is no list yet"


async def test_a_home_that_is_open_to_others_is_refused_before_anybody_hears_of_the_node(world: World) -> None:
    os.mkdir(os.environ["IRIS_HOME"])  # noqa: PTH102 -- nothing here takes time
    os.chmod(os.environ["IRIS_HOME"], 0o755)  # noqa: PTH101 -- as above
    with pytest.raises(iris.ConfigError, match="chmod 700"):
        async with iris.open_node(credential=world.shop, environment=world.environment()):
            pass
    assert world.is_untouched


# -- how it ends ---------------------------------------------------------------------------------------------


async def test_what_the_block_raises_comes_out_and_everything_is_given_back(world: World) -> None:
    async def fail() -> None:
        async with iris.open_node(credential=world.shop, environment=world.environment()):
            assert not world.is_untouched
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert world.is_untouched


async def test_a_block_that_is_cancelled_while_it_opens_never_begins_and_leaves_nothing(world: World) -> None:
    async def never(url: str) -> tuple[str, ...]:
        scope.cancel()
        await trio.sleep_forever()
        return (url,)

    with trio.CancelScope() as scope:
        async with iris.open_node(
            credential=world.shop, seeds=["tcp://10.0.0.1:1"], environment=world.environment(resolve=never)
        ):
            raise AssertionError("the block was entered")
    assert scope.cancelled_caught
    assert world.is_untouched


@pytest.mark.parametrize("how", ["ends", "raises", "is cancelled"])
async def test_however_the_block_ends_peers_hear_a_goodbye(world: World, autojump_clock: MockClock, how: str) -> None:
    environment = world.environment(directory=None)
    leaving = world.environment(directory=None)
    async with iris.open_node(credential=world.shop, listen=[LOOPBACK], environment=environment) as stays:
        async with stays.watch("shop") as changes:
            with trio.CancelScope() as scope:
                try:
                    async with (
                        iris.open_node(
                            credential=world.shop,
                            listen=["tcp://127.0.0.1:7001"],
                            seeds=[LOOPBACK],
                            environment=leaving,
                        ) as node,
                        node.join("shop", iris.Service("shop")),
                    ):
                        assert (await anext(changes)).kind == "joined"
                        if how == "raises":
                            raise KeyError("mine")
                        if how == "is cancelled":
                            scope.cancel()
                            await trio.sleep_forever()
                except KeyError:
                    assert how == "raises"
            assert scope.cancelled_caught == (how == "is cancelled")
            with trio.fail_after(1):
                kinds = [(await anext(changes)).kind]
                if kinds == ["draining"]:  # received if it comes before the goodbye
                    kinds.append((await anext(changes)).kind)
            assert kinds[-1] == "left"
        assert not stays.statistics().links
