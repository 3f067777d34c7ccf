"""Election: the lease of a shard's primary, as the primary keeps it and as its copies stand for it.

The primary holds the lease and renews it twice a second.  When nobody holds it any more, a copy takes it, and whoever
has it promotes the copy that has most.  A copy that still follows its primary first gives that one a turn to take the
lease again: so an engine that was away for a while, or was begun anew, brings no promotion.  Nor does a primary that
was promoted and takes long to open its log: the copy that took the lease meanwhile succeeds only the one before.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, Protocol, final
from urllib.parse import urlsplit

import trio

from iris.kernel.errors import ConfigError, IrisError
from iris.kernel.tasks import protected_context, run_in_thread
from iris.spark_bridge.copies import BridgeCopy, Promotion
from iris.spark_bridge.election.engine import ANSWER, LEASE, Engine, EngineAway
from iris.spark_bridge.election.etcd import Etcd

_log: Final = logging.getLogger("iris")

_RENEW: Final = 0.5
"""Seconds from one renewal to the next, and between attempts of a primary to have the lease."""

_LOOK: Final = 0.25
"""Seconds between two looks of a copy."""

_TURN: Final = 2.0
"""Seconds that a copy leaves a free lease to the primary that it follows: more than a renewal takes to come."""

_SETTLED: Final = 10.0
"""Seconds that a lease is kept for another copy that was promoted, until it is followed."""


class Promote(Protocol):
    """Promotes the copy that has most, if none follows a primary of a term after ``succeeded``."""

    def __call__(self, *, succeeded: int) -> Awaitable[Promotion]:
        """Called by who holds the lease; see ``iris.spark_bridge.copies.promote``."""
        ...


@final
class Election:
    """The lease of one log's primary.  Made by ``open_election``."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._one = threading.Lock()
        """Held by the thread that asks the engine, which may be one that nothing waits for any more."""
        self._problem = ""
        self._held = False

    def __repr__(self) -> str:
        return f"<Election of the primary of {self._name}{', held' if self._held else ''}>"

    @property
    def held(self) -> bool:
        """True if the engine said so when it was asked last."""
        return self._held

    @property
    def problem(self) -> str:
        """Why the engine does not answer now; empty if it does."""
        return self._problem

    async def keep(self) -> None:
        """Hold the lease as well as it can be had, until cancelled: what a primary does."""
        while True:
            began = trio.current_time()
            await self._acquire()
            # Not behind the answers: of an engine that takes a second for each the lease would end in between.
            await trio.sleep_until(began + _RENEW)

    async def stand(self, copy: BridgeCopy, promote: Promote) -> None:
        """Stand for the lease, until cancelled, and have a copy promoted when it is held: what a copy does.

        Args:
            copy: the copy of this process.
            promote: promotes the copy that has most.
        """
        left_to, since = 0, 0.0
        """Term of the primary that may take the lease, and when it was first found free with that one followed."""
        while True:
            await trio.sleep(_LOOK)
            if await self._ask(self._engine.is_free) is not True or not copy.whole:
                left_to = 0
                continue
            succeeded, now = copy.term, trio.current_time()
            if copy.followed != left_to:
                left_to, since = copy.followed, now
            if (left_to and now < since + _TURN) or not await self._acquire():
                continue
            if not await self._promote(copy, partial(promote, succeeded=succeeded)):
                await trio.sleep(2 * _TURN)  # another copy may be able to, also one that has to leave a turn first
            left_to = 0

    async def _promote(self, copy: BridgeCopy, promote: Callable[[], Awaitable[Promotion]]) -> bool:
        """Have a copy promoted while the lease is kept, then give it up; return whether one was."""
        promoted = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keep)
            _log.info(
                "the primary of %s is gone by the election: a copy is promoted",
                self._name,
                extra={"bridge": self._name},
            )
            try:
                done = await promote()
                promoted = True
            except (IrisError, trio.TooSlowError) as error:
                _log.warning(
                    "no copy of %s is promoted by the election: %s",
                    self._name,
                    error,
                    extra={"bridge": self._name, "reason": type(error).__name__},
                )
            else:
                _log.warning(
                    "copy %s is the primary of %s, in term %d",
                    done.copy,
                    self._name,
                    done.term,
                    extra={"bridge": self._name},
                )
                # A copy that does not follow the new primary yet would take a free lease at once.
                with trio.move_on_after(_SETTLED):
                    await copy.wait_followed(done.term)
            nursery.cancel_scope.cancel()
        await self.release()
        return promoted

    async def release(self) -> None:
        """Give the lease up, if it is held here.  At an engine that does not answer it ends by its time."""
        self._held = False
        if not self._problem:
            await self._ask(self._engine.release)

    async def _acquire(self) -> bool:
        held = await self._ask(self._engine.acquire) is True
        if held != self._held:
            self._held = held
            _log.info(
                "the lease of %s is %s",
                self._name,
                "held here" if held else "not held here any more",
                extra={"bridge": self._name},
            )
        return held

    async def _ask(self, question: Callable[[], bool | None]) -> bool | None:
        """Ask the engine; None if it does not answer, which is logged once.

        A question that was cancelled, or took too long, goes on in its thread, and the next one waits for it.
        """
        answer, problem = None, f"no answer within {LEASE} s"
        with trio.move_on_after(LEASE):
            try:
                answer = await run_in_thread(self._ask_alone, question, abandon_on_cancel=True)
                problem = ""
            except EngineAway as error:
                problem = str(error)
        if problem and not self._problem:
            _log.warning(
                "the election of %s: %s; a primary goes on, and nobody takes over",
                self._name,
                problem,
                extra={"bridge": self._name, "reason": problem},
            )
        elif self._problem and not problem:
            _log.info("the election of %s goes on: its engine answers again", self._name, extra={"bridge": self._name})
        self._problem = problem
        return answer

    def _ask_alone(self, question: Callable[[], bool | None]) -> bool | None:
        if not self._one.acquire(timeout=ANSWER):
            raise EngineAway("the question before has no answer yet")
        try:
            return question()
        finally:
            self._one.release()


@protected_context
async def open_election(url: str, *, bridge: str, shard: int) -> AsyncIterator[Election]:
    """Take part in the election of a log's primary, until the block ends, which gives up the lease if it is held here.

    Args:
        url: the engine: ``etcd://...`` or ``postgresql://...``; see ``Etcd`` and ``Postgres``.
        bridge: the bridge's cluster.
        shard: the lowest number of the member's shards.

    Raises:
        ConfigError: the URL names no engine that is known, or what it needs is not installed.
    """
    engine = _engine(url, f"{bridge}/{shard}", os.urandom(8).hex())
    election = Election(engine, f"{bridge}/{shard}")
    try:
        yield election
    finally:
        with trio.move_on_after(2 * ANSWER, shield=True):
            await election.release()
            await run_in_thread(engine.close, abandon_on_cancel=True)


def _engine(url: str, name: str, holder: str) -> Engine:
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise ConfigError(
            f"the election's URL is none, write etcd://HOST:PORT or postgresql://HOST/DATABASE: {error}"
        ) from None
    if scheme in ("etcd", "etcds"):
        return Etcd(url, name, holder)
    if scheme not in ("postgresql", "postgres"):  # the rest may have a password in it
        raise ConfigError(
            f"{scheme!r} is no engine of an election: write etcd://HOST:PORT or postgresql://HOST/DATABASE"
        )
    try:
        from iris.spark_bridge.election.postgres import Postgres
    except ModuleNotFoundError:
        raise ConfigError("an election by PostgreSQL needs psycopg: pip install 'iris-mesh[postgres]'") from None
    return Postgres(url, name, holder)
