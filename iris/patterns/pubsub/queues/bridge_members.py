"""Members of a bridge, as users of its log without Spark find them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, cast, final

from iris.kernel.errors import (
    ConfigError,
    DeliveryError,
    NotAllowed,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
)
from iris.kernel.names import is_name
from iris.patterns.multicast import Answers
from iris.patterns.tunnel import Tunnel

_ANSWERED: Final = 2.0
"""Seconds in which every member has to answer."""


class BridgeCalls(Protocol):
    """A node, as far as users of a bridge's log need it."""

    def survey(
        self, cluster: str, payload: Any, *, timeout: float, operation: str
    ) -> AbstractAsyncContextManager[Answers]:
        """See ``Node.survey``."""
        ...

    def open_tunnel(self, cluster: str, *, operation: str) -> AbstractAsyncContextManager[Tunnel]:
        """See ``Node.open_tunnel``."""
        ...


TRANSIENT: Final = (DeliveryError, RemoteProtocolError)
"""Errors of an attempt to reach a bridge that may work the next time, but for those that are ``is_final``."""


_PASSING: Final = frozenset({"BridgeUnreachable", "NotCopied", "StoreFull", "TierUnreachable"})
"""Codes of errors of a bridge that are over when its disk has room, or its copies or its tier are back."""


def is_final(error: BaseException) -> bool:
    """Return whether an error of a bridge comes again however often one asks."""
    if isinstance(error, RemoteError):
        return error.code not in _PASSING
    return isinstance(error, NotAllowed | ConfigError)


@final
class BridgeMembers:
    """The members of one bridge.

    Args:
        bridge: cluster of the bridge.
        node: node that asks them.
    """

    def __init__(self, bridge: str, node: BridgeCalls) -> None:
        self.bridge: Final = bridge
        self.owners: Final[dict[int, str]] = {}
        """Clusters of the members by number of their shards, as reported last: a member may have got another name."""
        self._node = node

    def __repr__(self) -> str:
        return f"<BridgeMembers {self.bridge}>"

    def open_tunnel(self, address: str, operation: str) -> AbstractAsyncContextManager[Tunnel]:
        """Open a tunnel to one of them."""
        return self._node.open_tunnel(address, operation=operation)

    async def addresses(self) -> list[str]:
        """Return the clusters at which the members are found, those that are away as well, sorted.

        Raises:
            NoSuchCluster: there is none.
            ConfigError: each of them stores all events of its topics, so that each job would be done several times.
            RequestTimeout: not every one that is there answered.
            DeliveryError: as ``Node.request``.
        """
        found: dict[str, int] = {}
        async with self._node.survey(self.bridge, None, operation="shards", timeout=_ANSWERED) as answers:
            async for answer in answers:
                found |= _members_untrusted(answer.payload)
                self.owners.update(_owners_untrusted(answer.payload))
        for error in answers.errors.values():
            raise error
        if answers.missing:
            raise RequestTimeout(f"not every member of bridge {self.bridge!r} has answered")
        if len(found) > 1 and not all(found.values()):
            raise ConfigError(
                f"each member of bridge {self.bridge!r} stores all events of its topics: start them with --of, so that "
                "each event is at one of them"
            )
        return sorted(found)


def _members_untrusted(payload: object) -> dict[str, int]:
    """Return the members that one has listed, with the number of shards that they divide; 0 if they divide none."""
    fields = cast("dict[str, object]", payload) if isinstance(payload, dict) else {}
    found: dict[str, int] = {}
    divided = 0
    for shard in _listed(fields.get("shards")):
        match shard:
            case {"address": str(address), "of": int(of)} if is_name(address):
                found[address] = divided = of
            case _:
                raise _not_understood()
    for pair in _listed(fields.get("known")):
        match pair:
            case [int(), str(address)] if is_name(address):
                found.setdefault(address, divided)
            case _:
                raise _not_understood()
    return found


def _owners_untrusted(payload: object) -> dict[int, str]:
    """Return the shards of the member that has answered, by number, with the cluster at which they are."""
    shards = _listed(cast("dict[str, object]", payload).get("shards"))
    return {
        shard["number"]: shard["address"]
        for shard in cast("list[dict[str, Any]]", shards)
        if type(shard.get("number")) is int
    }


def _listed(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _not_understood()
    return cast("list[object]", value)


def _not_understood() -> RemoteProtocolError:
    return RemoteProtocolError("a member of the bridge told of its shards in a form that is not understood")


def error_of(answer: object) -> Exception | None:
    """Return the error that a member has sent through a tunnel, if it is one."""
    match answer:
        case {"error": str(code), "message": str(message)}:
            return NotAllowed(message) if code == "NotAllowed" else RemoteError(code, message)
        case _:
            return None


def first_error(group: BaseException) -> Exception:
    """Return the first error of a group."""
    first = group
    while isinstance(first, BaseExceptionGroup):
        first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
    assert isinstance(first, Exception)
    return first
