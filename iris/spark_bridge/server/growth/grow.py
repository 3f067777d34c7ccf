"""Growing: adds shards to a bridge, which members that wait are to have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, final

import trio

from iris.kernel.errors import ConfigError, NoSuchCluster, RemoteProtocolError
from iris.patterns.bridge_protocol import RemoteShard, read_reply
from iris.patterns.pubsub.interest import MAX_SHARDS
from iris.spark_bridge.client import BridgeClient
from iris.spark_bridge.protocol import Divide
from iris.spark_bridge.server.growth.newcomer import Waiting, history_of, newcomers_cluster

_PAUSE: Final = 0.2
"""Seconds between looks for members that wait."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Result of a growth.

    Attributes:
        of: number of shards of the bridge now.
        before: number of shards before.
        marks: offset at which the new generation begins in each shard of before, by shard id.
    """

    of: int
    before: int
    marks: Mapping[str, int]


async def grow(client: BridgeClient, of: int, *, patience: float = 3.0) -> Growth:
    """Let a bridge that divides its events have more shards; it may be repeated, and goes on where it was interrupted.

    Every member has to be there, and for each new shard one that waits for this.  Then every member of before begins
    the new generation: it stores no more events of keys that belong to a new shard.  When all have, the new ones begin.

    Args:
        client: client whose node speaks for the bridge's own cluster.
        of: number of shards that the bridge is to have.
        patience: seconds for new members to be found; one that has just come may not be known everywhere yet.

    Raises:
        ConfigError: the bridge cannot grow so; the message says what to do.
        NotAllowed: the node speaks for another cluster.
        NotCopied: a member has begun the new generation, and not enough of its copies know that: grow again.
        BridgeUnreachable: a member went away meanwhile: start it, and grow again.
    """
    bridge = client.bridge
    found = {shard.number: shard for shard in (await client.present()).shards}
    grown = history_of([*found.values()])
    if not grown:
        raise ConfigError(
            f"the members of bridge {bridge!r} do not divide its events: start them with --of to have one that grows"
        )
    if not grown[-1] <= of <= MAX_SHARDS:
        raise ConfigError(f"bridge {bridge!r} has {grown[-1]} shards and only grows: give {grown[-1]} to {MAX_SHARDS}")
    begun = of == grown[-1]
    if not begun and (behind := [shard for shard in found.values() if shard.of < grown[-1]]):
        raise ConfigError(
            f"bridge {bridge!r} has begun to grow to {grown[-1]} shards, and shard {behind[0].number} has not: finish "
            f"that first, by 'iris bridge grow {bridge} --of {grown[-1]}'"
        )
    before = grown[-1] if not begun else grown[-2] if len(grown) > 1 else of
    if missing := [number for number in range(before) if number not in found]:
        raise ConfigError(
            f"shard {missing[0]} of bridge {bridge!r} has no member that is there: start it, all have to be there"
        )
    if lacking := await _lacking(client, of, {*range(before, of)} - {*found}, patience):
        raise ConfigError(
            f"nobody waits to have shard {min(lacking)} of {of} of bridge {bridge!r}: start 'iris bridge --shard "
            f"{min(lacking)} --of {of}' with the options of the other members and an empty --data, then grow"
        )
    for address in dict.fromkeys(found[number].address for number in range(before)):
        await client.ask(address, Divide(of=of))
    shards = await client.shards()
    return Growth(of=of, before=before, marks=_marks(shards, of, before))


def _marks(shards: list[RemoteShard], of: int, before: int) -> Mapping[str, int]:
    return {shard.id: shard.marks[of] for shard in shards if shard.number < before and of in shard.marks}


async def _lacking(client: BridgeClient, of: int, shards: set[int], patience: float) -> set[int]:
    """Wait until for each of these shards a member waits; return those for which none has come in time.

    Raises:
        ConfigError: see ``_newcomers``.
    """
    deadline = trio.current_time() + patience
    while True:
        lacking = shards - await _newcomers(client, of)
        if not lacking or trio.current_time() + _PAUSE > deadline:
            return lacking
        await trio.sleep(_PAUSE)


async def _newcomers(client: BridgeClient, of: int) -> frozenset[int]:
    """Return the shards of the members that wait until the bridge has so many.

    Raises:
        ConfigError: one waits for another number.
    """
    numbers: set[int] = set()
    try:
        async with client.node.survey(newcomers_cluster(client.bridge), None, operation="new", timeout=2.0) as answers:
            async for answer in answers:
                with suppress(RemoteProtocolError):
                    waiting = read_reply(Waiting, answer.payload)
                    if waiting.of != of:
                        raise ConfigError(
                            f"node {answer.member} waits until bridge {client.bridge!r} has {waiting.of} shards, and "
                            f"not {of}: start all new members alike"
                        )
                    numbers.update(waiting.shards)
    except NoSuchCluster:
        pass
    return frozenset(numbers)
