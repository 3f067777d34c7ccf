"""Groups of a bridge's readers, as an operator's program has them forgotten."""

from __future__ import annotations

from typing import Final

from iris.kernel.errors import ConfigError, NotAllowed, RemoteError
from iris.kernel.names import check_name
from iris.kernel.topic_syntax import is_topic
from iris.patterns.bridge_protocol import GROUP, Bridges, DropGroup
from iris.patterns.pubsub.queues.bridge_members import BridgeMembers

_TIMEOUT: Final = 5.0
"""Seconds that each member has to answer."""


async def drop_group(group: str, members: BridgeMembers, bridges: Bridges) -> None:
    """See ``Bridge.drop_group``."""
    if not (isinstance(group, str) and group.startswith(GROUP) and is_topic(group.removeprefix(GROUP))):
        check_name(group, "group")
    try:
        known = [await bridges.ask(address, DropGroup(group=group), _TIMEOUT) for address in await members.addresses()]
    except RemoteError as error:
        raise (NotAllowed(error.message) if error.code == "NotAllowed" else error) from None
    if not any(known):
        raise ConfigError(
            f"bridge {members.bridge!r} has no group {group!r}: use one of those that iris bridge status shows"
        )
