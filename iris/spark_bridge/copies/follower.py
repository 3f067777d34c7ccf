"""Follower: a copy of a member's log, that repeats what its primary does until it is promoted.

Two things change what a copy is: a change of its primary, and a promise to a promotion.  They take turns.  A promise is
on the disk before it is given, and from then on nothing is reported to a primary of a lower term.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, final

import msgspec
import trio

from iris.kernel.config import MIB
from iris.kernel.errors import (
    ConfigError,
    DeliveryError,
    NoSuchCluster,
    NotAllowed,
    RemoteError,
    RemoteProtocolError,
)
from iris.kernel.names import check_name
from iris.kernel.tasks import Wakeup, open_background, protected_context, run_in_thread
from iris.node.node import Node
from iris.patterns.bridge_protocol import as_fields, read_reply, read_request
from iris.patterns.messages import Request, Sender
from iris.patterns.pubsub.interest import copies_cluster, primary_cluster
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.client import one_error
from iris.spark_bridge.copies.terms import (
    DEFAULT_COPY,
    LogState,
    Settings,
    decode_state_untrusted,
    encode_state,
)
from iris.spark_bridge.copies.wire import (
    CopyState,
    Follow,
    FollowAnswer,
    FromCopy,
    OnDisk,
    Promise,
    Promote,
    ToCopy,
    receive_change,
    receive_message,
    send_bytes,
    send_message,
)
from iris.spark_bridge.errors import LogDamaged, StoreFull
from iris.spark_bridge.log import LogChange, Position, Store, existing_store, open_store

_log: Final = logging.getLogger("iris")

_PAUSE: Final = 0.25
"""Seconds between attempts to reach the primary."""

_PENDING: Final = 32 * MIB
"""Limit of changes that wait for the disk, in bytes; more are not received."""

_FINAL: Final = frozenset({"Refused", "NotAllowed", "bad_request"})
"""Errors of a primary that do not go away by trying again."""


@final
class BridgeCopy:
    """A copy of the log of one member.  Made by ``open_copy``."""

    def __init__(self, node: Node, store: Store, state: LogState, *, bridge: str, shard: int, name: str) -> None:
        self._node = node
        self.store: Final = store
        self._bridge = bridge
        self._shard = shard
        self._name = name
        self._state = state
        self._position = store.replication.position()
        self._turn = trio.Lock()
        """Held by the task that changes what this copy is."""
        self._following: trio.CancelScope | None = None
        self._followed = 0
        """Term of the primary that is followed now; 0 if none is."""
        self._news = trio.Event()
        """Set, and replaced, when another primary is followed."""
        self._promoted = trio.Event()
        self._problem = ""
        self._pending: list[LogChange] = []
        self._size = 0
        self._arrived = Wakeup()
        self._room = trio.lowlevel.ParkingLot()

    def __repr__(self) -> str:
        return f"<BridgeCopy {self._name} of {self._bridge}/{self._shard}, term {self._term}>"

    @property
    def _term(self) -> int:
        """The term in which this log was written."""
        return max(self._state.term, self._position.term)

    @property
    def whole(self) -> bool:
        """True if this copy equals its primary at some point in time; False while it is catching up."""
        return self._position.whole

    @property
    def problem(self) -> str:
        """Reason why the primary is not followed now; empty if it is."""
        return self._problem

    @property
    def followed(self) -> int:
        """Term of the primary that is followed now; 0 if none is."""
        return self._followed

    @property
    def term(self) -> int:
        """Term of the latest primary that this copy follows, or has a change of."""
        return max(self._term, self._followed)

    async def wait_followed(self, term: int) -> None:
        """Wait until a primary of a term is followed, or a later one, or this copy is promoted."""
        while self._followed < term and not self._promoted.is_set():
            await self._news.wait()

    async def wait_promoted(self) -> Settings:
        """Wait until this copy is promoted; return how the bridge was started.

        The log is that of a primary then: leave the block, and open the bridge on it.
        """
        await self._promoted.wait()
        return self._state.settings

    # -- being asked ----------------------------------------------------------------------------------------

    def service(self) -> Service:
        """Return the service that answers promotions."""
        service = Service(copies_cluster(self._bridge, self._shard))
        service.request("state")(self._answer_state)
        service.request("promise")(self._answer_promise)
        service.request("promote")(self._answer_promote)
        return service

    async def _answer_state(self, _request: Request) -> object:
        return as_fields(await self._describe())

    async def _describe(self, *, granted: bool = False) -> CopyState:
        held = await run_in_thread(self.store.replication.held)
        return CopyState(
            copy=self._name,
            term=self._term,
            number=self._position.number,
            whole=self._position.whole,
            promised=self._state.promised,
            revision=self._state.revision,
            copies=tuple(self._state.copies),
            counted=tuple(self._state.counted),
            min_copies=self._state.settings.min_copies,
            next={shard.number: shard.next for shard in held},
            problem=self._problem,
            followed=self._followed,
            emptied=self._state.emptied and not self._position.whole,
            granted=granted,
        )

    def _check(self, sender: Sender) -> None:
        if sender.cluster != self._bridge:
            raise RemoteError(
                "NotAllowed",
                f"only nodes of cluster {self._bridge!r} may promote a copy of its log, and this one speaks for "
                f"{sender.cluster!r}",
            )

    async def _answer_promise(self, request: Request) -> object:
        """Promise to follow no primary of a term below the one that is asked for, if that was not promised before."""
        self._check(request.sender)
        asked = read_request(Promise, request.payload)
        term = asked.term
        async with self._turn:
            granted = term > self._state.promised and not self._promoted.is_set()
            if asked.succeeded is not None and self._followed > asked.succeeded:
                granted = False  # somebody else was promoted since the one who asks looked
            if granted:
                await self._put(msgspec.structs.replace(self._state, promised=term))
                if self._following is not None and self._followed < term:
                    self._following.cancel()
        return as_fields(await self._describe(granted=granted))

    async def _answer_promote(self, request: Request) -> bool | None:
        """Become the primary of the term that was promised; None: another copy is meant."""
        self._check(request.sender)
        order = read_request(Promote, request.payload)
        if order.copy != self._name:
            return None
        term = order.term
        async with self._turn:
            if self._promoted.is_set() or term != self._state.promised or term <= self._term:
                return False
            held = await run_in_thread(self.store.replication.held)
            offsets = {shard.number: shard.next for shard in held}
            # From here on this log is the bridge's, whatever becomes of this process.
            await self._put(self._state.promoted(self._name, term, offsets, order.min_copies))
            self._promoted.set()
            self._notify()
        return True

    async def _put(self, state: LogState) -> None:
        await run_in_thread(self.store.replication.put_state, encode_state(state))
        self._state = state

    # -- following ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the primary until promoted or cancelled.

        Raises:
            ConfigError: the primary does not accept this copy: it is of another log.
        """
        while not self._promoted.is_set():
            try:
                with trio.CancelScope() as self._following:
                    await self._follow()
            except NoSuchCluster:
                self._note(
                    f"no primary of shard {self._shard} of bridge {self._bridge!r} is there that was started with "
                    "--min-copies"
                )
            except RemoteError as error:
                if error.code in _FINAL:
                    raise ConfigError(
                        f"copy {self._name!r} cannot follow bridge {self._bridge!r}: {error.message}; a copy begins "
                        "with an empty directory, or with one that was a copy of this bridge"
                    ) from None
                self._note(error.message)
            except (DeliveryError, RemoteProtocolError, trio.TooSlowError) as error:
                self._note(f"the primary cannot be followed: {error}")
            except StoreFull as error:
                self._note(f"this copy has no room: {error}")
            except LogDamaged as error:
                self._note(f"the primary, or this copy, is damaged: {error}")
            finally:
                self._following = None
                self._followed = 0
            await trio.sleep(_PAUSE)

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.warning("copy %s: %s", self._name, problem, extra={"bridge": self._bridge, "reason": problem})

    async def _follow(self) -> None:
        held = msgspec.msgpack.encode(await run_in_thread(self.store.replication.held))
        async with self._node.open_tunnel(primary_cluster(self._bridge, self._shard), operation="follow") as tunnel:
            state = self._state
            # In doubt it says to each primary that it knows nothing: its promise may be to the successor of any.
            revision = 0 if self._name in state.doubted else state.revision
            follow = Follow(
                copy=self._name,
                term=self._term,
                promised=state.promised,
                revision=revision,
                held=len(held),
                disk=state.disk,
            )
            await send_message(tunnel, follow)
            await send_bytes(tunnel, held)
            answer = await receive_message(tunnel, FollowAnswer)
            term = answer.term
            if term < self._state.promised:
                await send_message(tunnel, FromCopy(promised=self._state.promised))
                raise RemoteProtocolError(f"a primary of term {term}, which was promised not to be followed any more")
            self._followed = term
            self._notify()
            await self._learn(answer.state, term, begins=True)
            self._pending.clear()
            self._size = 0
            try:
                with one_error():
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._repeat, tunnel, term)
                        await self._receive(tunnel, term)
            finally:
                if self._state.promised > term:
                    await self._part(tunnel)

    async def _part(self, tunnel: Tunnel) -> None:
        """Report a promise to the primary that was followed: until that leaves, publishers send to it."""
        with trio.move_on_after(_PAUSE, shield=True), suppress(DeliveryError, trio.EndOfChannel):
            await send_message(tunnel, FromCopy(promised=self._state.promised))
            while True:  # a tunnel that is left loses what is on its way
                await tunnel.receive()

    async def _learn(self, state: bytes, term: int, *, begins: bool = False) -> None:
        learned = decode_state_untrusted(state)
        if self._shard != min(learned.settings.shards):
            raise ConfigError(
                f"shard {self._shard} of bridge {self._bridge!r} is in one log with others: follow "
                f"{self._bridge}/{min(learned.settings.shards)}"
            )
        async with self._turn:
            if self._state.promised > term:
                return
            # Only of the first one: a copy that is new counts as soon as the others know of it.
            emptied = begins and not self._position.number and self._name in learned.counted
            emptied = not self._position.whole and (emptied or self._state.emptied)
            own = {"term": self._state.term, "promised": term, "emptied": emptied, "disk": self._state.disk}
            await self._put(msgspec.structs.replace(learned, role="copy", **own))

    async def _receive(self, tunnel: Tunnel, term: int) -> None:
        while True:
            message = await receive_message(tunnel, ToCopy)
            if message.state is not None:
                await self._learn(message.state, term)
                await self._confirm(tunnel)
            # A promise that is on its way to the disk is not given yet: no promotion is before this answer.
            if message.asked is not None and self._state.promised <= term:
                await send_message(tunnel, FromCopy(follows=message.asked))
            if message.change is None:
                continue
            change = await receive_change(tunnel, message.change)
            self._pending.append(change)
            self._size += change.size
            self._arrived.wake()
            while self._size > _PENDING:
                await self._room.park()

    async def _repeat(self, tunnel: Tunnel, term: int) -> None:
        """Make the changes that have come, as many as there are in one transaction."""
        while True:
            while not self._pending:
                await self._arrived.wait()
            changes, self._pending, self._size = self._pending, [], 0
            self._room.unpark_all()
            async with self._turn:
                if self._state.promised > term:
                    return
                repeat = partial(self.store.replication.repeat, changes, term=term)
                position = await run_in_thread(repeat)
            if position is not None:
                self._position = position
                self._note_following()
                await self._confirm(tunnel)

    def _note_following(self) -> None:
        if self._problem:
            self._problem = ""
            _log.info("copy %s follows again", self._name, extra={"bridge": self._bridge})

    async def _confirm(self, tunnel: Tunnel) -> None:
        """Report to the primary what is on the disk."""
        position, revision = self._position, self._state.revision
        shards = self.store.shards()  # a look at the index
        on_disk = OnDisk(
            number=position.number if position.term == self._followed else 0,
            whole=position.whole and position.term == self._followed,
            next={shard.number: shard.next for shard in shards},
            revision=revision,
        )
        await send_message(tunnel, FromCopy(on_disk=on_disk))


@protected_context
async def open_copy(
    node: Node, *, bridge: str, shard: int, directory: Path | str, name: str = DEFAULT_COPY
) -> AsyncIterator[BridgeCopy]:
    """Be a copy of the log that has a shard of a bridge, until the block ends.

    Args:
        node: speaks for the bridge's cluster; best opened with ``BRIDGE_CONFIG``.
        bridge: the bridge's cluster.
        shard: the lowest number of the member's shards.
        directory: directory of the copy, for it alone; empty, or of a former copy or primary of this log.
        name: distinguishes the copies of one log.

    Raises:
        ConfigError: a name or the directory cannot be used, or another copy has this name, or the primary has another
            log; the latter may end the block.
        StoreBusy: another process has the directory open.
        LogDamaged: the directory holds something else.

    Cancelling the block is leaving it.  What this copy has confirmed to its primary is on the disk.
    """
    check_name(bridge, "cluster")
    check_name(name, "copy")
    await _check_name(node, bridge, shard, name)
    store = await run_in_thread(partial(open_store, Path(directory), shards=(), entropy=os.urandom))
    try:
        state = await run_in_thread(_begin, store)
        copy = BridgeCopy(node, store, state, bridge=bridge, shard=shard, name=name)
        async with AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(open_background())
            nursery.start_soon(copy.run)
            await stack.enter_async_context(node.join(copies_cluster(bridge, shard), copy.service()))
            yield copy
    finally:
        with trio.CancelScope(shield=True):
            await run_in_thread(store.close, else_here=True)


def _begin(store: Store) -> LogState:
    """Make a log a copy, whatever it was, and give its disk an identity."""
    found = decode_state_untrusted(store.replication.state())
    state = msgspec.structs.replace(found, role="copy", disk=found.disk or os.urandom(16).hex())
    if found.role == "copy":
        if state.disk != found.disk:
            store.replication.put_state(encode_state(state))
        return state
    store.replication.put_state(encode_state(state), position=Position(0, 0, False))
    return state


async def _check_name(node: Node, bridge: str, shard: int, name: str) -> None:
    """Raise ConfigError if another copy has this name."""
    for state in await ask_copies(node, bridge, shard, "state"):
        if state.copy == name:
            raise ConfigError(
                f"shard {shard} of bridge {bridge!r} has a copy {name!r} already: give this one another name by --copy"
            )


async def ask_copies(
    node: Node, bridge: str, shard: int, operation: str, payload: object = None
) -> Sequence[CopyState]:
    """Ask every reachable copy of a shard; return their answers.

    Raises:
        NotAllowed: this node may not ask that.
        RemoteProtocolError: one tells of itself in a form that is not understood.
    """
    answers: list[CopyState] = []
    try:
        async with node.survey(copies_cluster(bridge, shard), payload, operation=operation, timeout=5.0) as survey:
            answers += [read_reply(CopyState, answer.payload) async for answer in survey]
    except NoSuchCluster:
        return answers
    for error in survey.errors.values():
        if isinstance(error, RemoteError) and error.code == "NotAllowed":
            raise NotAllowed(error.message)
    return answers


async def later_term(node: Node, bridge: str, shard: int) -> int:
    """Return the latest term of the reachable primaries of a shard; 0 if there is none."""
    terms = [0]
    try:
        async with node.survey(primary_cluster(bridge, shard), None, operation="term", timeout=5.0) as survey:
            terms += [answer.payload async for answer in survey if type(answer.payload) is int]
    except NoSuchCluster:
        pass
    return max(terms)


def read_state(directory: Path) -> LogState | None:
    """Return what the log in a directory is among its copies; None: there is none.

    Raises:
        StoreBusy: another process has it open.
        LogDamaged: what is there is no log.
    """
    with existing_store(directory) as store:
        if store is None:
            return None
        state = decode_state_untrusted(store.replication.state())
        return state if state.role == "copy" or store.shards() else None
