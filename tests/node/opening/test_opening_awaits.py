"""Each await of opening a node, or a gateway, takes long in turn, while others dial it and send: over sockets.

Where trio is the guest of an event loop, that one's callbacks read what comes (``Transport.receive_in``): between any
two steps of the task that opens the node.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 -- one of the fronts
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pytest
import trio

import iris
import iris.aio
import iris.testing
from iris.cluster.mesh import Mesh, Peer
from iris.federation.gateway import open_gateway_parts
from iris.kernel.wire import kinds
from iris.node import open as opening
from iris.node.open import OpenNode, open_parts
from iris.security.authority.issuing import issue_cluster, revoke_cluster
from iris.security.authority.realm_root import create_realm
from iris.security.files.local_realm import private_home
from iris.security.files.realm_files import save_revocations
from tests.support.ports import free_port

LONG: Final = 0.15
"""Seconds that an await is made to take: several dials of the others."""

AWAITS: Final = 10
"""Waits of the task that opens a node like this one, at the least."""

GATEWAY_AWAITS: Final = 3
"""The same of one that makes its node a gateway."""


async def _rest() -> None:
    with trio.CancelScope(shield=True):  # a wait that is over has its outcome, whatever is cancelled
        await trio.sleep(LONG)


class DelayedAt:
    """Runs a coroutine, and has it sleep after one of its waits, or after each."""

    def __init__(self, inner: Coroutine[Any, Any, Any], at: int | None) -> None:
        self.waits = 0
        self._inner = inner
        self._at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        send: Callable[[Any], Any] = self._inner.send
        value: Any = None
        while True:
            try:
                trap = send(value)
            except StopIteration as end:
                return end.value
            try:
                value = yield trap
                send = self._inner.send
            except BaseException as error:  # noqa: BLE001 -- it is the coroutine's
                value, send = error, self._inner.throw
            if self._at in (None, self.waits):
                yield from _rest().__await__()
            self.waits += 1


class Look:
    """What a mesh has at each frame that it handles: of the observers and receivers that it has in the end."""

    def __init__(self) -> None:
        self.waits = 0
        """Waits of the task that opened the node."""
        self.frames = 0
        self.is_over = False
        """True once the node is left."""
        self.meshes: dict[Mesh, set[tuple[int, int]]] = {}
        self.linked: set[str] = set()

    def note(self, mesh: Mesh) -> None:
        if self.is_over:
            return
        self.frames += 1
        self.meshes.setdefault(mesh, set()).add((len(mesh._observers), len(mesh.receivers.own)))
        self.linked.update(peer.identity.cluster for peer in mesh.peers.values())


class Town:
    """Two nodes in a thread of their own that dial a third one without a rest: one of them is revoked."""

    def __init__(self, home: Path) -> None:
        self.now = iris.Environment().wall_clock()
        self.url = f"tcp://127.0.0.1:{free_port()}"
        root = create_realm(os.urandom)
        issued: dict[str, Any] = {}
        for name in ("shop", "honest", "evil"):
            rights = iris.testing.Rights(gateway=True)
            root, issued[name] = issue_cluster(root, name, entropy=os.urandom, wall_now=self.now, rights=rights)
        self.credentials = issued
        _, listed = revoke_cluster(root, "evil", wall_now=self.now)
        self.list = home / "revoked"
        save_revocations(self.list, listed)
        self._ready = threading.Event()
        self._stop: Callable[[], None] = lambda: None

    def environment(self) -> iris.Environment:
        return iris.Environment(directory=None, lan=None)

    @contextmanager
    def awake(self, *, gateways: bool = False) -> Iterator[None]:
        """Have the two dial, for the length of the block: as nodes, or as gateways of other sites."""
        thread = threading.Thread(target=trio.run, args=(self._run_gateways if gateways else self._run,))
        thread.start()
        assert self._ready.wait(30)
        try:
            yield
        finally:
            self._stop()
            thread.join()

    async def _run_gateways(self) -> None:
        token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
        self._stop = lambda: token.run_sync_soon(scope.cancel)
        with scope:
            async with AsyncExitStack() as stack:
                meshes: list[Mesh] = []
                for name in ("honest", "evil"):
                    one = await stack.enter_async_context(self._node(name, site=name))
                    opened = await stack.enter_async_context(open_gateway_parts(one.node, listen=["tcp://127.0.0.1:0"]))
                    meshes.append(opened.between)
                meshes[1].receivers.own[kinds.Revocations] = _ignore
                async with trio.open_nursery() as nursery:
                    for mesh in meshes:
                        nursery.start_soon(self._knock, mesh)
                    self._ready.set()

    async def _run(self) -> None:
        token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
        self._stop = lambda: token.run_sync_soon(scope.cancel)
        with scope:
            async with self._node("honest") as honest, self._node("evil") as evil, trio.open_nursery() as nursery:
                # Else it would know, after the first attempt, that nobody talks to it.
                evil.parts.mesh.receivers.own[kinds.Revocations] = _ignore
                for one in (honest, evil):
                    nursery.start_soon(self._knock, one.parts.mesh)
                nursery.start_soon(self._publish, honest.node)
                self._ready.set()

    @asynccontextmanager
    async def _node(self, name: str, site: str | None = None) -> AsyncIterator[OpenNode]:
        async with open_parts(
            credential=self.credentials[name],
            listen=["tcp://127.0.0.1:0"],
            site=site,
            environment=self.environment(),
        ) as one:
            yield one

    async def _knock(self, mesh: Mesh) -> None:
        while True:
            with trio.move_on_after(1):
                with suppress(iris.IrisError):
                    await mesh.connect([self.url])
            await trio.sleep(0.01)

    async def _publish(self, node: iris.Node) -> None:
        number = 0
        while True:
            number += 1
            await node.publish("news.today", number)
            await trio.sleep(0.01)


def _ignore(_: Peer, __: Any) -> None:
    """Do nothing with a message."""


async def _open(opened: Callable[[], Any]) -> None:
    """Open a node by a front, and take events of the honest node's until the other one was refused."""
    async with opened() as shop, shop.subscribe("news.>") as events:
        async for event in events:
            assert event.topic == "news.today"
            if shop.statistics().refusals.get("AuthenticationError"):
                return  # the other one has tried, too


def _in_trio(town: Town) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            await _open(partial(iris.open_node, **_options(town)))

    trio.run(main)


def _in_asyncio(town: Town) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await _open(partial(iris.aio.open_node, **_options(town)))

    asyncio.run(main())


def _options(town: Town) -> dict[str, Any]:
    return {
        "credential": town.credentials["shop"],
        "listen": [town.url],
        "revocations": town.list,
        "environment": town.environment(),
    }


FRONTS: dict[str, Callable[[Town], None]] = {"trio": _in_trio, "asyncio": _in_asyncio}


class Slowly:
    """The block of a node that is opened with a delay in one await, or in each."""

    def __init__(self, look: Look, at: int | None, *arguments: Any, **options: Any) -> None:
        self._look = look
        self._at = at
        self._block = open_parts(*arguments, **options)

    async def __aenter__(self) -> OpenNode:
        opening = DelayedAt(self._block.__aenter__(), self._at)
        opened: OpenNode = await opening
        self._opened = opened
        self._look.waits = opening.waits
        return opened

    async def __aexit__(self, *raised: object) -> bool | None:
        mesh, self._look.is_over = self._opened.parts.mesh, True
        self._look.linked.update(peer.identity.cluster for peer in mesh.peers.values())
        return await self._block.__aexit__(*cast("Any", raised))


def open_delayed(town: Town, front: str, at: int | None, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Open a node with a delay in one await, or in each; return what was seen."""
    look = Look()
    handle = Mesh.receive_frame

    def receive_frame(mesh: Mesh, frame: bytes | memoryview) -> None:
        if mesh.identity.cluster == "shop":
            look.note(mesh)
        handle(mesh, frame)

    with monkeypatch.context() as patch:
        patch.setattr(Mesh, "receive_frame", receive_frame)
        patch.setattr(opening, "open_parts", partial(Slowly, look, at))
        FRONTS[front](town)
    return look


def check(look: Look) -> None:
    assert look.frames
    assert look.linked == {"honest"}
    for seen in look.meshes.values():
        assert len(seen) == 1, "frames were handled before all was there that is to see them"


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    private_home("revocations", "revocations")
    one = Town(tmp_path)
    with one.awake():
        yield one


@pytest.mark.parametrize("front", FRONTS)
def test_no_frame_is_handled_before_all_is_there_however_long_each_await_takes(
    town: Town, front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = open_delayed(town, front, None, monkeypatch)
    assert look.waits >= AWAITS
    check(look)


@pytest.mark.parametrize("front", ["asyncio", pytest.param("trio", marks=pytest.mark.long)])
@pytest.mark.parametrize("at", range(AWAITS))
def test_no_frame_is_handled_before_all_is_there_when_one_await_takes_long(
    town: Town, front: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = open_delayed(town, front, at, monkeypatch)
    assert look.waits > at
    check(look)


@pytest.mark.parametrize("at", [None, *range(GATEWAY_AWAITS)])
def test_no_frame_is_handled_before_all_of_a_gateway_is_there(
    tmp_path: Path, at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    private_home("revocations", "revocations")
    town, look = Town(tmp_path), Look()
    handle = Mesh.receive_frame

    def receive_frame(mesh: Mesh, frame: bytes | memoryview) -> None:
        if mesh.identity.cluster == "shop" and mesh.tag.between:
            look.note(mesh)
        handle(mesh, frame)

    async def main() -> None:
        async with open_parts(
            credential=town.credentials["shop"], site="here", revocations=town.list, environment=town.environment()
        ) as shop:
            block = open_gateway_parts(shop.node, listen=[town.url])
            delayed = DelayedAt(block.__aenter__(), at)
            _, between, _ = await delayed
            look.waits = delayed.waits
            with trio.fail_after(30):
                while not (between.peers and between.refusals["AuthenticationError"]):  # noqa: ASYNC110 -- no event
                    await trio.sleep(0.01)
            look.linked.update(peer.identity.cluster for peer in between.peers.values())
            look.is_over = True
            await block.__aexit__(None, None, None)

    with town.awake(gateways=True), monkeypatch.context() as patch:
        patch.setattr(Mesh, "receive_frame", receive_frame)
        trio.run(main)
    assert look.waits > (at or 0), look.waits
    check(look)
