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
from typing import Final, final

import msgspec
import trio
from msgspec import UNSET, Struct, UnsetType

from iris.kernel.config import KIB
from iris.kernel.errors import ConfigError, Overloaded, RemoteError
from iris.patterns.messages import Request, Sender
from iris.patterns.service import Service
from iris.patterns.state.entries import SET, VALUE, Entry, as_element, check_key, read_element
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedMap, value_of
from iris.patterns.state.watch import StateWatch
from iris.patterns.tunnel import Tunnel

_STEP: Final = 256 * KIB
"""Size of the entries that are read at a time, in bytes."""


@final
class Subject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Subject of an operation; see this module."""

    map: str = ""
    key: str | UnsetType = UNSET
    counter: str | UnsetType = UNSET
    set: str | UnsetType = UNSET
    value: object = UNSET
    number: int = 1
    element: object = UNSET


def serve_programs(
    service: Service,
    replica: Replica,
    check: Callable[[Sender], Awaitable[None]],
    check_allowed: Callable[[Sender], None],
    watch: Callable[[str], StateWatch],
) -> None:
    """Add the operations to the service of a document.

    Args:
        check: waits until the document is there; raises RemoteError for a sender that may not use it.
        check_allowed: raises RemoteError for a sender that may not use it now.
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
            except (ConfigError, RecursionError, msgspec.ValidationError) as error:
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
            check_allowed(tunnel.sender)  # it may have been a member when it began, and be none now
            await tunnel.send(msgspec.to_builtins(change, builtin_types=(bytes,)))


def _read(replica: Replica, place: SharedMap, subject: Subject) -> object:
    """Return what is there at one moment; to read all of a large document takes several steps."""
    if isinstance(subject.key, str):
        return place.get(subject.key)
    if isinstance(subject.counter, str):
        return place.counter(subject.counter).value
    if isinstance(subject.set, str):
        return _read_all(replica.contents.all_of((SET, subject.map, check_key(subject.set, "name"))), read_element)
    return _read_all(replica.contents.all_of((VALUE, subject.map, "")))


async def _read_all(
    found: Mapping[str, Collection[Entry]], read: Callable[[str], object] | None = None
) -> list[object] | dict[str, object]:
    """Return elements as ``read`` has them, or without it values by their keys."""
    shown: dict[str, object] = {}
    size = 0
    for key in sorted(found):
        shown[key] = read(key) if read else value_of(found[key])
        size += sum(entry.size for entry in found[key])
        if size > _STEP:
            size = 0
            await trio.lowlevel.checkpoint()
    return list(shown.values()) if read else shown


def _write(place: SharedMap, subject: Subject) -> None:
    if not isinstance(subject.key, str) or subject.value is UNSET:
        raise ConfigError("write takes key and value")
    place[subject.key] = subject.value


def _add(place: SharedMap, subject: Subject) -> None:
    if isinstance(subject.counter, str):
        place.counter(subject.counter).add(subject.number)
    elif isinstance(subject.set, str) and subject.element is not UNSET:
        place.set(subject.set).add(as_element(subject.element))
    else:
        raise ConfigError("add takes counter, or set and element")


def _remove(place: SharedMap, subject: Subject) -> None:
    if isinstance(subject.key, str):
        place.pop(subject.key, None)
    elif isinstance(subject.set, str) and subject.element is not UNSET:
        place.set(subject.set).discard(as_element(subject.element))
    else:
        raise ConfigError("remove takes key, or set and element")


_OPERATIONS: Final = {"write": _write, "add": _add, "remove": _remove}
