"""Operations on a document for programs that are no members: those behind a door.

They are requests of the document's cluster, with what they are about as a map: ``key``, ``counter`` or ``set``, and
``map`` where it belongs to a map of the document.  ``read`` gives what is there; ``write`` sets a key to ``value``;
``add`` adds ``number`` to a counter or ``element`` to a set; ``remove`` removes a key or an ``element``.  The tunnel
``watch`` gets a pattern and gives a map for each change, see ``StateChange``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Final, cast, final

import msgspec
import trio
from msgspec import UNSET, Struct, UnsetType

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, Overloaded, RemoteError
from iris.patterns.messages import Request, Sender
from iris.patterns.service import Service
from iris.patterns.state.entries import AT_A_TIME, MAX_DEPTH, SET, VALUE, Entry, check_key, read_element
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedMap, value_of
from iris.patterns.state.watch import StateWatch
from iris.patterns.tunnel import Tunnel

_STEP: Final = 256 * KIB
"""Bytes of entries that are read at a time."""


@final
class Subject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operation is about; see this module."""

    map: str = ""
    key: str | UnsetType = UNSET
    counter: str | UnsetType = UNSET
    set: str | UnsetType = UNSET
    value: Any = UNSET
    number: int = 1
    element: Any = UNSET


def serve_programs(
    service: Service, replica: Replica, check: Callable[[Sender], Awaitable[None]], watch: Callable[[str], StateWatch]
) -> None:
    """Add the operations to the service of a document.

    Args:
        check: waits until the document is there; raises RemoteError for a sender that may not use it.
        watch: follows what a pattern matches.
    """

    def checked(operation: Callable[[SharedMap, Subject], object]) -> Callable[[Request], Awaitable[object]]:
        async def handle(request: Request) -> object:
            await check(request.sender)
            try:
                subject = msgspec.convert(request.payload, Subject)
                name = subject.map and check_key(subject.map, "name")
                result = operation(SharedMap(replica, name), subject)
                return await result if isawaitable(result) else result
            except (ConfigError, msgspec.ValidationError) as error:
                raise RemoteError("bad_request", str(error)) from None
            except Overloaded as error:
                raise RemoteError("full", str(error)) from None

        return handle

    service.request("read")(checked(partial(_read, replica)))
    for name, operation in _OPERATIONS.items():
        service.request(name)(checked(operation))

    @service.tunnel("watch")
    async def serve_watch(tunnel: Tunnel) -> None:
        await check(tunnel.sender)
        try:
            pattern = await tunnel.receive()
            changes = watch(pattern if isinstance(pattern, str) else "")
        except trio.EndOfChannel:
            raise RemoteError("bad_request", "watch takes a pattern") from None
        except ConfigError as error:
            raise RemoteError("bad_request", str(error)) from None
        async for change in changes:
            await tunnel.send(msgspec.to_builtins(change, builtin_types=(bytes,)))


def _read(replica: Replica, place: SharedMap, subject: Subject) -> object:
    """Return what is there at one moment; to read all of a large document takes several steps."""
    if isinstance(subject.key, str):
        return place.get(subject.key)
    if isinstance(subject.counter, str):
        return place.counter(subject.counter).value
    if isinstance(subject.set, str):
        return _read_set(replica.all_of((SET, subject.map, check_key(subject.set, "name"))))
    return _read_map(replica.all_of((VALUE, subject.map, "")))


async def _read_set(found: Collection[str]) -> list[Any]:
    shown: list[Any] = []
    for key in sorted(found):
        shown.append(read_element(key))
        if len(shown) % AT_A_TIME == 0:
            await trio.lowlevel.checkpoint()
    return shown


async def _read_map(found: Mapping[str, tuple[Entry, ...]]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    size = 0
    for key in sorted(found):
        shown[key] = value_of(found[key])
        size += found[key][0].size
        if size > _STEP:
            size = 0
            await trio.lowlevel.checkpoint()
    return shown


def _write(place: SharedMap, subject: Subject) -> None:
    if not isinstance(subject.key, str) or subject.value is UNSET:
        raise ConfigError("write takes key and value")
    place[subject.key] = subject.value


def _add(place: SharedMap, subject: Subject) -> None:
    if isinstance(subject.counter, str):
        place.counter(subject.counter).add(subject.number)
    elif isinstance(subject.set, str) and subject.element is not UNSET:
        place.set(subject.set).add(_hashable(subject.element))
    else:
        raise ConfigError("add takes counter, or set and element")


def _remove(place: SharedMap, subject: Subject) -> None:
    if isinstance(subject.key, str):
        place.pop(subject.key, None)
    elif isinstance(subject.set, str) and subject.element is not UNSET:
        place.set(subject.set).discard(_hashable(subject.element))
    else:
        raise ConfigError("remove takes key, or set and element")


def _hashable(element: object, depth: int = 0) -> object:
    """Return an element as a set holds it: what are tuples in Python are lists elsewhere."""
    if not isinstance(element, list | tuple):
        return element
    if depth >= MAX_DEPTH:
        raise ConfigError(f"a value is nested deeper than {MAX_DEPTH}: use several keys")
    return tuple(_hashable(one, depth + 1) for one in cast("list[object]", element))


_OPERATIONS: Final = {"write": _write, "add": _add, "remove": _remove}
