"""Primary: sends every change of its log to its copies, and knows which changes enough of them have on their disks.

A copy catches up first (``iris.spark_bridge.log.replication``), then gets each change as it is committed, and of a
large one the chunks while they are written here.  What is not on the disks of ``min_copies`` of them is not confirmed
and not given to readers, so no reader has seen an event that a promoted copy lacks.

A slow copy slows the primary down: it waits while a copy that takes part has 32 MiB of changes to write.  A copy that
makes no progress for 10 s is cut off, and catches up when it comes back.  Without enough copies events go on being
stored; confirmations and readers wait.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final, final

import msgspec
import trio

from iris.kernel.config import MIB
from iris.kernel.errors import ConfigError, IrisError, NotAllowed, RemoteError, RemoteProtocolError, TunnelBroken
from iris.kernel.tasks import Wakeup, run_in_thread
from iris.patterns.bridge_protocol import read_request
from iris.patterns.messages import Request, Sender
from iris.patterns.pubsub.interest import primary_cluster
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.client import one_error
from iris.spark_bridge.copies.terms import (
    LogState,
    Settings,
    encode_state,
    needed_acceptances,
)
from iris.spark_bridge.copies.wire import (
    Follow,
    FollowAnswer,
    FromCopy,
    ToCopy,
    receive_bytes,
    receive_message,
    send_change,
    send_message,
)
from iris.spark_bridge.errors import NotCopied
from iris.spark_bridge.log import ABANDONED, HeldShard, LogChange, Store
from iris.spark_bridge.protocol import CopyStatus, ForgetCopy

_log: Final = logging.getLogger("iris")

_ROOM: Final = 32 * MIB
"""Limit of changes that a copy has not confirmed, in bytes; beyond it nothing more is stored."""

_MOST: Final = 256 * MIB
"""Limit of changes that are kept for a copy, in bytes; beyond it the copy catches up anew."""

_CLOSE: Final = 8 * MIB
"""Most that a copy may lack when it takes part, in bytes: it goes into one transaction with the tables."""

_STALLED: Final = 10.0
"""Seconds without progress after which a copy is cut off."""

_HELD: Final = msgspec.msgpack.Decoder(list[HeldShard])


@final
class _Follower:
    """A copy that is connected."""

    def __init__(self, name: str, tunnel: Tunnel) -> None:
        self.name = name
        self.tunnel = tunnel
        self.participates = False
        """True once each new change is queued for this copy."""
        self.queue: deque[LogChange] = deque()
        self.queued = Wakeup()
        self.unconfirmed: deque[tuple[int, int]] = deque()
        """Number and size in bytes of each change that the copy has not confirmed."""
        self.size = 0
        self._uncommitted = 0
        """Size in bytes, included in ``size``, of a change that is not committed yet."""
        self.progress = trio.current_time()
        self.scope = trio.CancelScope()
        self.reason = RemoteError("Replaced", f"copy {name!r} has come a second time")
        """Error to raise when the scope is cancelled."""
        self.state: bytes | None = None
        """Encoded state that the copy is to receive besides changes. None if it has the latest."""
        self.asked = 0
        """Number of the last question "do you follow?" that was sent to the copy."""
        self.follows = 0
        """Number of the last such question that the copy has answered."""

    def add(self, change: LogChange) -> None:
        """Queue a change."""
        if change is ABANDONED:
            self.size -= self._uncommitted
            self._uncommitted = 0
            while self.queue and not self.queue[-1].head.number:
                self.queue.pop()
            return
        self.queue.append(change)
        self.owe(change)
        self.queued.wake()

    def owe(self, change: LogChange) -> None:
        if not self.unconfirmed:
            self.progress = trio.current_time()
        self.size += change.size
        self._uncommitted += change.size
        if change.head.number:
            self.unconfirmed.append((change.head.number, self._uncommitted))
            self._uncommitted = 0

    def leave_out(self, number: int) -> None:
        """Remove the queued changes up to this number: they are sent in another way."""
        known = [place for place, change in enumerate(self.queue, 1) if 0 < change.head.number <= number]
        for _ in range(known[-1] if known else 0):
            self.queue.popleft()

    def confirmed(self, number: int) -> None:
        self.progress = trio.current_time()
        while self.unconfirmed and self.unconfirmed[0][0] <= number:
            self.size -= self.unconfirmed.popleft()[1]


@final
class PrimaryCopies:
    """The copies of one member's log.

    Args:
        store: the log.
        state: the log's role, term and copies.
        settings: settings with which the bridge was started this time.
        bridge: name of the bridge.
    """

    def __init__(self, store: Store, state: LogState, settings: Settings, *, bridge: str) -> None:
        self._store = store
        self._state = state
        self._settings = settings
        self._bridge = bridge
        self._token = trio.lowlevel.current_trio_token()
        self._followers: dict[str, _Follower] = {}
        self._confirmed: dict[str, int] = {}
        """Number of the last change that each copy that is connected has confirmed as a whole copy."""
        self._next: dict[str, Mapping[int, int]] = {}
        self._revisions: dict[str, int] = {}
        self._copied = 0
        self._asked = 0
        """Number of the last question "do you follow?" to all copies."""
        self._news = trio.Event()
        self._writing = trio.Lock()
        self._listening = trio.Lock()
        self._deposed = 0
        self._ready = False

    def __repr__(self) -> str:
        return f"<PrimaryCopies of term {self._state.term}: {', '.join(self._state.copies) or 'none'}>"

    @property
    def bridge(self) -> str:
        """Name of the bridge."""
        return self._bridge

    @property
    def address(self) -> str:
        """Cluster at which the member's shards are found."""
        return self._bridge if self._settings.member is None else f"{self._bridge}.{self._settings.member}"

    @property
    def shards(self) -> Sequence[int]:
        """Numbers of the member's shards."""
        return self._settings.shards

    @property
    def term(self) -> int:
        """Term of this primary."""
        return self._state.term

    def forks(self, term: int) -> Mapping[int, int]:
        """Return, by shard, the offset up to which a log of an earlier term is of the same history as this one."""
        return self._state.forks(term)

    @property
    def copied(self) -> float:
        """Number of the last change that enough copies have; infinite if none are needed."""
        return self._copied if self._settings.min_copies else math.inf

    @property
    def is_deposed(self) -> bool:
        """True if a copy has promised itself to a later term: this primary ends, and confirms nothing more."""
        return self._deposed > 0

    def describe(self) -> str:
        """Return a text that says what confirmations wait for."""
        here, needed = self._in_step()
        if here >= needed:
            return "its copies have not written it yet"
        return f"{here} of the {needed} copies that it needs are in step"

    def _in_step(self) -> tuple[int, int]:
        """Return how many copies have a part in confirmations, and how many are needed."""
        undoubted = self._undoubted()
        here = sum(follower.participates and follower.name in undoubted for follower in self._all())
        return here, max(self._settings.min_copies, self._state.settings.min_copies)

    def _all(self) -> list[_Follower]:
        return list(self._followers.values())

    async def statuses(self) -> list[CopyStatus]:
        """Return the status of each copy that this log knows."""
        shards = {shard.number: shard.next for shard in await run_in_thread(self._store.shards)}
        found: list[CopyStatus] = []
        for name in self._state.copies:
            following = self._next.get(name)
            behind = None if following is None else sum(max(0, at - following.get(n, 0)) for n, at in shards.items())
            follower = self._followers.get(name)
            if follower is None:
                state = "away"
            elif not follower.participates:
                state = "catching up"
            else:
                state = "in step" if name in self._undoubted() else "not counted"
            found.append(CopyStatus(name=name, state=state, behind=behind))
        return found

    # -- waiting --------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def wake(self) -> None:
        """Wake all tasks in ``wait_news``."""
        self._notify()

    async def wait_news(self) -> None:
        """Wait until something changes: ``copied``, or room."""
        await self._news.wait()

    async def wait_copied(self, timeout: float) -> None:
        """Wait until all that is in the log now is on enough copies.

        Raises:
            NotCopied: it is not, after ``timeout`` seconds; it is in the log all the same.
        """
        if self.copied == math.inf:
            return
        number = await run_in_thread(self._store.replication.number)
        with trio.move_on_after(timeout):
            while self.copied < number:
                await self.wait_news()
        if self.copied < number:
            raise NotCopied(f"the log of bridge {self._bridge!r} has it, and too few copies do: {self.describe()}")

    async def wait_followed(self) -> None:
        """Wait until enough copies have said, asked after this call, that they follow this primary.

        So none of them was promoted before this call: each promotion needs the promise of one of these copies.  Of a
        log that needs no copies this is not known, and it does not wait.  Cancelling leaves nothing behind.
        """
        if not self._settings.min_copies:
            return
        self._asked += 1
        number = self._asked
        for follower in self._all():
            follower.queued.wake()
        while self._count_following(number) < self._settings.min_copies:
            await self.wait_news()

    def _count_following(self, number: int) -> int:
        undoubted = self._undoubted()
        return sum(follower.follows >= number for follower in self._all() if follower.name in undoubted)

    async def wait_room(self, before: int) -> None:
        """Wait while a copy that takes part has too much to write, or those that are needed have not ``before``.

        Args:
            before: number of the last group but one.  So a group is written here while copies write the one before,
                and what arrives gathers in the next one.  Each group costs 4 ms of processor time, however small.
        """
        while self._followers and self._has_too_much(before):
            await self.wait_news()

    def _has_too_much(self, before: int) -> bool:
        if any(follower.participates and follower.size > _ROOM for follower in self._all()):
            return True
        here, needed = self._in_step()
        return self.copied < before and here >= needed

    async def wait_ready(self) -> None:
        """Wait until so many known copies have met this primary that none of them can have been promoted meanwhile.

        A log that has no copies is ready at once: what is in it is the only one.  A copy that counted and comes with
        nothing may have promised itself to a successor, on the disk that it lost: it does not count here.
        """
        start = await run_in_thread(self._store.replication.number)
        state, new = self._state, self._settings
        strict = max(state.settings.min_copies, new.min_copies)
        while self._count_met(start) < needed_acceptances(len(self._state.copies), strict):
            await self.wait_news()
        if new != state.settings:
            await self._write(lambda _: {"settings": new})
            # Copies that may be promoted have to know the new settings before anything is confirmed by these.
            revision = self._state.revision
            while self._count_known(revision) < needed_acceptances(len(self._state.copies), strict):
                await self.wait_news()
        self._ready = True
        await self._write(lambda state: {"doubted": ()} if state.doubted else {})
        self._copied = max(self._copied, start)

    def has_any(self) -> bool:
        """Return whether this log may have copies: a bridge without needs no right to serve what they ask for."""
        return bool(self._settings.min_copies or self._state.copies or self._state.history)

    def is_waiting(self) -> bool:
        """Return whether ``wait_ready`` would wait."""
        strict = max(self._state.settings.min_copies, self._settings.min_copies)
        return not self._ready and needed_acceptances(len(self._state.copies), strict) > 0

    def _count_met(self, number: int) -> int:
        return sum(self._confirmed.get(name, -1) >= number for name in self._undoubted())

    def _count_known(self, revision: int) -> int:
        return sum(self._revisions.get(name, -1) >= revision for name in self._undoubted())

    def _have_followed(self, revision: int) -> bool:
        """Return whether none can have been promoted before a revision: a promotion needs one of those that know it.

        Where the disks of all are lost, so is whatever was promoted with them.
        """
        strict = max(self._state.settings.min_copies, self._settings.min_copies)
        return self._count_known(revision) >= min(len(self._undoubted()), strict)

    def _undoubted(self) -> list[str]:
        return [name for name in self._state.counted if name not in self._state.doubted]

    async def watch(self) -> None:
        """Wait until a copy has reported a later term.

        Raises:
            ConfigError: always, then: no copy follows this log any more.
        """
        while not self._deposed:
            await self.wait_news()
        raise deposed(self._bridge, min(self._settings.shards), self._deposed, self.term)

    # -- what the log says of its copies --------------------------------------------------------------------

    async def _write(self, change: Callable[[LogState], Mapping[str, Any]]) -> None:
        """Change the state on the disk, then send it to the copies.

        ``change`` gets the current state and returns the fields that differ: two copies may connect at once.
        """
        async with self._writing:
            changes = change(self._state)
            if not changes:
                return
            state = msgspec.structs.replace(self._state, revision=self._state.revision + 1, **changes)
            await run_in_thread(self._store.replication.put_state, encode_state(state))
            self._state = state
        for follower in self._all():
            follower.state = encode_state(state)
            follower.queued.wake()
        self._notify()

    async def _count(self) -> None:
        """Count the copies that every other one knows of, and those whose former disk promised nothing."""

        def count(state: LogState) -> dict[str, Any]:
            changes: dict[str, Any] = {}
            counted = [
                name
                for name, added in state.copies.items()
                if name in state.counted or all(self._revisions.get(other, -1) >= added for other in state.copies)
            ]
            if len(counted) > len(state.counted):
                changes["counted"] = counted
            doubted = [name for name in state.doubted if not (self._ready and self._have_followed(state.copies[name]))]
            if len(doubted) < len(state.doubted):
                changes["doubted"] = doubted
            return changes

        if count(self._state):
            await self._write(count)

    async def forget(self, name: str) -> bool:
        """Remove a copy that does not come back from the state; return True if it was known.

        Raises:
            ConfigError: the copy is connected.
        """
        known = False

        def forget(state: LogState) -> dict[str, Any]:
            nonlocal known
            if name in self._followers:
                raise ConfigError(f"copy {name!r} is there: stop it, then drop it")
            known = name in state.copies
            if not known:
                return {}
            self._confirmed.pop(name, None)
            self._next.pop(name, None)
            return {
                "copies": {copy: added for copy, added in state.copies.items() if copy != name},
                "counted": [copy for copy in state.counted if copy != name],
                "doubted": [copy for copy in state.doubted if copy != name],
                "disks": {copy: disk for copy, disk in state.disks.items() if copy != name},
            }

        await self._write(forget)
        if known:
            await self._count()
        return known

    def close(self) -> None:
        """Disconnect all copies: this member leaves."""
        for follower in self._all():
            follower.reason = RemoteError("Leaving", "the primary leaves")
            follower.scope.cancel()

    # -- serving copies -------------------------------------------------------------------------------------

    def services(self) -> dict[str, Service]:
        """Return the services for this member's copies, by cluster: one for each shard."""
        found: dict[str, Service] = {}
        for shard in self._settings.shards:
            cluster = primary_cluster(self._bridge, shard)
            service = found[cluster] = Service(cluster)
            service.tunnel("follow")(self._serve)
            service.request("term")(self._answer_term)
            service.request("forget")(self._answer_forget)
        return found

    def _check(self, sender: Sender) -> None:
        if sender.cluster != self._bridge:
            raise NotAllowed(
                f"only nodes of cluster {self._bridge!r} may copy its log, and this one speaks for {sender.cluster!r}"
            )

    async def _answer_term(self, _request: Request) -> int:
        return self.term

    async def _answer_forget(self, request: Request) -> bool:
        try:
            self._check(request.sender)
        except NotAllowed as error:
            raise RemoteError("NotAllowed", str(error)) from None
        asked = read_request(ForgetCopy, request.payload)
        try:
            return await self.forget(asked.name)
        except ConfigError as error:
            raise RemoteError("ConfigError", str(error)) from None

    async def _serve(self, tunnel: Tunnel) -> None:
        with suppress(TunnelBroken):  # it comes back, and catches up
            try:
                self._check(tunnel.sender)
                with one_error():
                    await self._follow(tunnel)
            except TunnelBroken:
                raise
            except IrisError as error:
                code, message = type(error).__name__, str(error)
                if isinstance(error, RemoteError):
                    code, message = error.code, error.message
                await tunnel.send({"error": code, "message": message})
                await tunnel.send_eof()

    async def _follow(self, tunnel: Tunnel) -> None:
        asked = await receive_message(tunnel, Follow)
        name, term = asked.copy, asked.term
        held = _held_untrusted(await receive_bytes(tunnel, asked.held))
        if asked.promised > self.term:
            self._deposed = asked.promised
            self._notify()
            raise RemoteError("Deposed", f"this primary is of term {self.term}")
        # Several may wait here while a thread reads for the former one: each gives way to who comes after it, or one
        # that gets no changes would think that it follows.
        while (former := self._followers.get(name)) is not None:
            former.scope.cancel()  # its tunnel is dead, and nobody has noticed yet
            await self.wait_news()
        follower = self._followers[name] = _Follower(name, tunnel)
        try:
            with follower.scope:
                self._revisions[name] = asked.revision
                was_doubted = name in self._state.doubted
                await self._write(lambda state: self._met(state, name, asked.revision, asked.disk))
                await self._count()
                if not was_doubted:
                    self._warn_of_doubt(name)
                follower.state = None
                await send_message(tunnel, FollowAnswer(term=self.term, state=encode_state(self._state)))
                await self._send_all(follower, term, held)
            raise follower.reason
        finally:
            _log.warning("copy %s of bridge %s has left", name, self._bridge, extra={"bridge": self._bridge})
            if self._followers.get(name) is follower:
                del self._followers[name]
                self._confirmed.pop(name, None)  # its disk may be another one when it comes back
            self._notify()
            await self._listen()

    def _met(self, state: LogState, name: str, revision: int, disk: str) -> dict[str, Any]:
        """Return what changes as a copy comes that knows a revision, from a disk.

        Its disk is another one if it says so.  A copy of 0.9 says nothing of it, and one that knows nothing counts as
        one that lost its disk.
        """
        known = state.disks.get(name, "")
        disks = {"disks": {**state.disks, name: disk}} if disk != known else {}
        if name not in state.copies:
            return {**disks, "copies": {**state.copies, name: state.revision + 1}}
        is_same = disk == known if disk and known else revision > 0
        if is_same or name not in state.counted or (name in state.doubted and not disks):
            return disks
        # Known as one that was just added, too: who follows this primary says so by knowing that.
        copies = {**state.copies, name: state.revision + 1}
        return {**disks, "copies": copies, "doubted": sorted({*state.doubted, name})}

    def _warn_of_doubt(self, name: str) -> None:
        if name in self._state.doubted:
            _log.warning(
                "copy %s of bridge %s has lost what it had: this primary waits for others, as one may have been "
                "promoted; if none was, stop the copy and take it from the list: iris bridge drop --copy %s/%d",
                name,
                self._bridge,
                name,
                min(self._settings.shards),
                extra={"bridge": self._bridge},
            )

    async def _listen(self) -> None:
        """Journal the changes of the log as long as there is a copy."""
        with trio.CancelScope(shield=True):
            async with self._listening:
                replication = self._store.replication
                if self._followers:
                    await run_in_thread(replication.listen, self._changed, else_here=True)
                else:
                    await run_in_thread(replication.listen_no_more, else_here=True)

    def _changed(self, change: LogChange) -> None:
        self._token.run_sync_soon(self._distribute, change)

    def _distribute(self, change: LogChange) -> None:
        for follower in self._all():
            if follower.participates:
                follower.add(change)
                if follower.size > _MOST:
                    follower.reason = RemoteError("Stalled", f"copy {follower.name!r} has too much to write")
                    follower.scope.cancel()

    async def _send_all(self, follower: _Follower, term: int, held: Sequence[HeldShard]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, follower)
            nursery.start_soon(self._watch_progress, follower)
            await self._catch_up(follower, term, held)
            while True:
                while follower.state is None and not follower.queue and follower.asked == self._asked:
                    await follower.queued.wait()
                if follower.asked != self._asked:
                    follower.asked = self._asked
                    await send_message(follower.tunnel, ToCopy(asked=follower.asked))
                if follower.state is not None:
                    state, follower.state = follower.state, None
                    await send_message(follower.tunnel, ToCopy(state=state))
                if follower.queue:
                    await send_change(follower.tunnel, follower.queue.popleft())

    async def _catch_up(self, follower: _Follower, term: int, held: Sequence[HeldShard]) -> None:
        replication = self._store.replication
        try:
            cuts = await run_in_thread(replication.cuts, held, self._state.forks(term))
        except ValueError as error:
            raise RemoteError("Refused", str(error)) from None
        begin: LogChange | None = await run_in_thread(replication.begin, cuts)
        offsets = {cut.shard.number: cut.offset for cut in cuts}
        while await run_in_thread(replication.lacking, offsets) > _CLOSE:
            if begin is not None:
                await self._send(follower, begin)
                begin = None
            for shard in offsets:
                change, offsets[shard] = await run_in_thread(replication.piece, shard, offsets[shard])
                if change is not None:
                    await self._send(follower, change)
        await self._listen()
        follower.participates = True  # from here each change is queued; those that are in the rest are left out
        with closing(replication.rest(offsets, begin)) as rest:
            while (change := await run_in_thread(lambda: next(rest, None))) is not None:
                follower.leave_out(change.head.number)
                await self._send(follower, change)
        _log.info("copy %s of bridge %s is in step", follower.name, self._bridge, extra={"bridge": self._bridge})

    async def _send(self, follower: _Follower, change: LogChange) -> None:
        follower.owe(change)
        await send_change(follower.tunnel, change)

    async def _receive(self, follower: _Follower) -> None:
        name = follower.name
        while True:
            message = await receive_message(follower.tunnel, FromCopy)
            if message.promised is not None:
                self._deposed = max(self._deposed, message.promised)
            if message.follows is not None:
                follower.follows = min(message.follows, follower.asked)
            if (disk := message.on_disk) is not None:
                follower.confirmed(disk.number)
                self._revisions[name] = max(disk.revision, self._revisions.get(name, 0))
                self._next[name] = disk.next
                if disk.whole and follower.participates:
                    self._confirmed[name] = disk.number
                await self._count()
                self._note_copied()
            self._notify()

    def _note_copied(self) -> None:
        most = self._settings.min_copies
        numbers = sorted((self._confirmed.get(name, -1) for name in self._undoubted()), reverse=True)
        if self._ready and 0 < most <= len(numbers):
            self._copied = max(self._copied, numbers[most - 1])

    async def _watch_progress(self, follower: _Follower) -> None:
        while True:
            since = follower.progress if follower.unconfirmed else trio.current_time()
            await trio.sleep_until(since + _STALLED)
            if follower.unconfirmed and trio.current_time() >= follower.progress + _STALLED:
                raise RemoteError("Stalled", f"copy {follower.name!r} has confirmed nothing for {_STALLED:g} s")


def deposed(bridge: str, shard: int, later: int, term: int) -> ConfigError:
    """Return the error of a primary that is none any more."""
    return ConfigError(
        f"shard {shard} of bridge {bridge!r} was promoted elsewhere, to term {later}, and this log is of term {term}: "
        f"start it with --follow {bridge}/{shard}, and it becomes a copy"
    )


def _held_untrusted(data: bytes) -> list[HeldShard]:
    try:
        return _HELD.decode(data)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"what a copy has cannot be read: {error}") from None
