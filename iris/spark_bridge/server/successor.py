"""Successor: a process that is a copy until it is promoted, and the bridge's member from then on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

from iris.kernel.tasks import open_background, run_in_thread
from iris.node.node import Node
from iris.spark_bridge.copies import Settings, later_term, open_copy, promote, read_state
from iris.spark_bridge.election import Election
from iris.spark_bridge.log import Retention
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember


async def follow(
    node: Node,
    bridge: str,
    shard: int,
    directory: Path,
    name: str,
    follows: Callable[[], None],
    election: Election | None = None,
) -> Settings:
    """Be a copy until it is promoted; return how the bridge was started.

    A log that is a primary's, because it was promoted in an earlier run, stays that, unless there is a primary of a
    later term: then it becomes its copy.

    Args:
        node: speaks for the bridge's cluster.
        bridge: the bridge's cluster.
        shard: the lowest number of the member's shards.
        directory: directory of the log.
        name: name of the copy.
        follows: called when it is a copy.
        election: has a copy promoted when the primary is gone. None: a person does.

    Raises:
        as ``open_copy``.
    """
    state = await run_in_thread(read_state, directory)
    if state is not None and state.role == "primary" and await later_term(node, bridge, shard) <= state.term:
        return state.settings
    async with (
        open_copy(node, bridge=bridge, shard=shard, directory=directory, name=name) as copy,
        open_background() as nursery,
    ):
        follows()
        if election is not None:
            nursery.start_soon(election.stand, copy, partial(promote, node, bridge, shard))
        return await copy.wait_promoted()


def reopen(
    node: Node,
    bridge: str,
    directory: Path,
    settings: Settings,
    *,
    waiting: Callable[[str], None],
    election: Election | None = None,
) -> AbstractAsyncContextManager[BridgeMember]:
    """Open the bridge on a log that was promoted, as it was opened before on the former primary's."""
    return open_bridge(
        node,
        topics=settings.topics,
        clusters=settings.clusters,
        directory=directory,
        name=bridge,
        shards=settings.shards,
        of=settings.of,
        member=settings.member,
        readers=settings.readers,
        retention=Retention(
            max_age=settings.max_age,
            max_bytes=settings.max_bytes,
            keep_unread=settings.keep_unread,
            group_idle=settings.group_idle,
        ),
        min_copies=settings.min_copies,
        tier=settings.tier,
        waiting=waiting,
        election=election,
    )
