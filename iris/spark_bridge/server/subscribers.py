"""Durable subscriptions on a bridge's disk: the durable subscribers of its realm, for which publishers wait.

A publisher that starts while one bridge is away learns of it from another bridge, also if that one was away at the same
time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

from iris.kernel.tasks import Wakeup, open_background, run_in_thread
from iris.patterns.pubsub.interest import DurableSubscribers
from iris.spark_bridge.errors import StoreFull
from iris.spark_bridge.log import Store

_log: Final = logging.getLogger("iris")

_RETRY: Final = 0.5
"""Seconds between attempts to write to a full disk."""


@asynccontextmanager
async def remember_subscribers(
    store: Store,
    durable: DurableSubscribers,
    *,
    name: str,
    topics: Sequence[str],
    group: str | None,
    share: Sequence[int],
) -> AsyncIterator[None]:
    """Claim the durable subscription ``name`` of some topics, announce those in the store, keep all that are known.

    Raises:
        ConfigError, NotAllowed: see ``DurableSubscribers.claim``.
    """
    refused = durable.load(await run_in_thread(store.subscribers))
    if refused:
        _log.warning(
            "%d durable subscribers that bridge %s remembers are not of this realm",
            refused,
            name,
            extra={"bridge": name, "count": refused},
        )
    changed = Wakeup()
    end = durable.on_changed(changed.wake)

    async def keep() -> None:
        while True:
            await changed.wait()
            try:
                await write()
            except StoreFull:
                await trio.sleep(_RETRY)
                changed.wake()

    async def write(*, ends: bool = False) -> None:
        await run_in_thread(store.keep_subscribers, durable.records(), else_here=ends)

    try:
        with durable.claim(name, topics, group=group, share=tuple(share)):
            async with open_background() as nursery:
                nursery.start_soon(keep)
                yield
            with trio.CancelScope(shield=True), suppress(StoreFull):
                await write(ends=True)
    finally:
        end()
