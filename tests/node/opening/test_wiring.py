"""Wiring: while nodes, clients, gateways, bridges and doors open and work, no part sets an attribute of another one.

A *part* is an object whose constructor is given what it works with: a callable, a nursery, a port (a Protocol), or
another part.  It may be asked and told by its methods; what it is made of came in by its constructor.  An attribute
that another object fills later has a moment in which it is not filled, and nobody who reads the class sees who does it.

Records are no parts: values, and the state that one part keeps for each peer, member, request or event and updates as
it likes.  Those whose constructors look like a part's are named in ``RECORDS``.  What two classes of one file do with
each other is their own affair.
"""

from __future__ import annotations

import asyncio
import enum
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network
from tests.support.doors import open_place
from tests.support.federations import Heard, echo, open_federation


class Setting(NamedTuple):
    """An attribute that was set from outside."""

    by: str
    part: str
    attribute: str


RECORDS: Final = {
    "Peer": "a linked node, as mesh, membership and sites see it",
    "InboxWaiter": "a task that waits for frames",
    "TopicRun": "the events of one publisher that may still grow",
    "_Run": "the same, with what became of them",
}
"""Records whose constructors take what a part's do, each with what it is the record of."""


def classes() -> Iterator[type]:
    """Yield every class of Iris that was imported, once."""
    seen: set[type] = set()
    for name, module in sorted(sys.modules.items()):
        if name == "iris" or name.startswith("iris."):
            members: list[object] = list(vars(module).values())
            for found in members:
                if isinstance(found, type) and found.__module__.startswith("iris.") and found not in seen:
                    seen.add(found)
                    yield found


def is_record(one: type) -> bool:
    """Return whether a class is a value by its kind."""
    return (
        hasattr(one, "__dataclass_fields__")
        or getattr(one, "_is_protocol", False)
        or issubclass(one, msgspec.Struct | tuple | enum.Enum | BaseException)
    )


def find_parts() -> set[type]:
    """Return the classes of Iris that are parts."""
    given = {one: _given(one) for one in classes() if not is_record(one)}
    ports = {one.__name__ for one in classes() if getattr(one, "_is_protocol", False)}
    parts: set[type] = set()
    while True:
        names = {"Callable", "Nursery", *ports, *(part.__name__ for part in parts)}
        more = {one for one, words in given.items() if one not in parts and words & names}
        if not more:
            return parts
        parts |= more


def _given(one: type) -> set[str]:
    init = one.__dict__.get("__init__")
    annotations = getattr(init, "__annotations__", {})
    return {word for name, text in annotations.items() if name != "return" for word in re.findall(r"\w+", str(text))}


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Setting]]:
    """Note what is set from outside on any part, within the block."""
    found: set[Setting] = set()
    with monkeypatch.context() as patch:
        for part in find_parts():
            if part.__name__ not in RECORDS:
                patch.setattr(part, "__setattr__", _watcher(part, found), raising=False)
        yield found


def _watcher(part: type, found: set[Setting]) -> Callable[[Any, str, Any], None]:
    plain: Any = part.__setattr__

    def watch(self: Any, name: str, value: Any) -> None:
        frame = sys._getframe(1)
        by = _setter(frame, self)
        if by is not None and frame.f_globals["__name__"] != type(self).__module__:
            found.add(Setting(by, type(self).__name__, name))
        plain(self, name, value)

    return watch


def _setter(frame: FrameType, of: object) -> str | None:
    """Return the class, or else the function, that sets an attribute; None if it is the object's own code."""
    module = frame.f_globals.get("__name__", "")
    if not module.startswith("iris."):
        return None
    by = frame.f_locals.get("self")
    if by is of:
        return None
    return frame.f_code.co_name if by is None else type(by).__name__


def check(found: set[Setting]) -> None:
    """See that nothing was set from outside but what is left."""
    if found:
        pytest.fail("\n".join(f"{by} sets {part}.{name}" for by, part, name in sorted(found)))


async def test_no_part_of_a_node_a_client_or_a_gateway_has_an_attribute_set_by_another_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching(monkeypatch) as found:
        async with open_federation() as federation:
            shop = await federation.two_sites(echo("store"))
            client = await federation.node("eu", "client", client=True)
            heard: list[Heard] = []
            await federation.listen("eu", "orders.>", heard)
            for asker in (shop, client):
                assert await asker.request("store", 1, wait=5) == 1
            while not heard:
                await shop.publish("orders.new", 1)
                await trio.sleep(1)
            federation.network.memory.partition(["eu-gateway"], ["us-gateway"])
            await trio.sleep(5)
    check(found)


async def test_no_part_of_a_bridge_has_an_attribute_set_by_another_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with watching(monkeypatch) as found:
        async with (
            open_network() as network,
            network.open_node("bridge") as node,
            open_bridge(node, topics=["orders.>"], directory=tmp_path),
            network.open_node("shop") as shop,
        ):
            await shop.publish_confirmed("orders.new", 1, timeout=60)
    check(found)


def test_no_part_of_a_door_has_an_attribute_set_by_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def open_door() -> None:
        async with open_place(tmp_path) as place:
            assert place.door.statistics().connections == 0

    with watching(monkeypatch) as found:
        asyncio.run(open_door())
    check(found)


class Wanted(Protocol):
    """What a part is given."""


class Slot:
    """A part, in a module of its own as far as anybody can see, with an attribute for another one to fill."""

    __module__ = "iris.slot"

    def __init__(self, wanted: Wanted) -> None:
        self.filled: object = wanted


class Filler:
    """Fills it."""

    def fill(self, slot: Slot) -> None:
        slot.filled = self.fill


def test_an_attribute_that_another_object_fills_is_found() -> None:
    found: set[Setting] = set()
    watched = type("Slot", (Slot,), {"__setattr__": _watcher(Slot, found)})
    slot = watched(cast("Wanted", None))
    assert not found, "its own constructor"
    fill = FunctionType(Filler.fill.__code__, {"__name__": "iris.filler"})
    fill(Filler(), slot)
    assert found == {Setting("Filler", "Slot", "filled")}
