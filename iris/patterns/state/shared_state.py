"""SharedState: a document that all members of a cluster have, and the tasks that keep their copies equal.

An edit goes out as one broadcast to the members (tens of bytes beside what was edited).  What a member misses, because
it was away or a message was lost, it gets from others: every two seconds it asks one of them, drawn at random, whether
it has something else, and at once when an edit comes that builds on what it lacks; see ``sync``.

A node that has proved the right to serve the cluster may read and write the document; no other gets anything of it but
by ``allow``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, final
from weakref import WeakSet

import trio
from msgspec import Struct

from iris.kernel.config import KIB, MIB
from iris.kernel.errors import (
    ConfigError,
    DeliveryError,
    IrisError,
    NoSuchCluster,
    RemoteError,
    RemoteProtocolError,
    RequestTimeout,
)
from iris.kernel.names import NodeId
from iris.kernel.numerals import as_float, as_whole, shown
from iris.kernel.tasks import Wakeup, open_background, run_in_thread
from iris.patterns.messages import Message, Request, Sender
from iris.patterns.pubsub.interest import check_pattern
from iris.patterns.service import Service
from iris.patterns.state.entries import (
    AT_A_TIME,
    BUCKETS,
    COUNTER,
    SET,
    Edit,
    Entry,
    Kind,
    Vector,
    check_key,
    encode,
    read_edit_untrusted,
    read_entries_untrusted,
)
from iris.patterns.state.kept_copy import damaged_copy, load_copy, save_copy
from iris.patterns.state.members import StateMembers
from iris.patterns.state.programs import Programs
from iris.patterns.state.replica import Replica
from iris.patterns.state.shared_types import SharedMap
from iris.patterns.state.sync import pull, read_untrusted, serve
from iris.patterns.state.watch import StateChange, StateWatch
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")

MAX_BYTES: Final = 16 * MIB

_INTERVAL: Final = 2.0
"""Seconds between two comparisons with a member drawn at random, a quarter more or less."""
_SYNC_TIMEOUT: Final = 30.0
"""Seconds that comparing with a member may take, with all that goes over then."""
_SYNCS_AT_A_TIME: Final = 8
"""Members that compare with this one at a time, and with which this one does; others wait."""
_ANOTHER: Final = 1.0
"""Seconds until who begins asks a second member for the document; twice that until the third, and so on."""
_PATIENCE: Final = 0.1
"""Seconds for what comes a little later: a member that is new, or an edit that another one builds on."""
_BROADCAST: Final = 256 * KIB
"""Bytes of an edit that goes out by itself, with ``AT_A_TIME`` entries at most.  A larger one is announced, and the
members come for it."""
_SAVE_AFTER: Final = 1.0
"""Seconds after a change until the copy on disk is written."""
_GOODBYE: Final = 1.0
_KNOWN_WITHIN: Final = 2.0
"""Seconds within which a member that compares has to be known as one here."""
_LOGGED: Final = 64
"""Members whose messages were refused of which the log tells."""

_ALLOWANCE: Final = 3
"""Times its bound that the document of another member may have: twice, and what it has written itself."""
_PER_PIECE: Final = 1024
"""Entries in each piece of a copy on disk."""

_SYNC: Final = "sync"
_REACHED: Final = "reached"
_COMPARE: Final = "compare"
_NOT_A_MEMBER: Final = "not_a_member"


@final
class _Copy(Struct, frozen=True, array_like=True):
    """What a copy on disk holds."""

    vector: Vector
    pieces: list[bytes]
    """Entries, some in each piece."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatistics:
    """Counters of a document at one member."""

    keys: int
    """Values, without those in its maps."""
    bytes: int
    """Bytes of the document: names, values, and 128 for each entry."""
    writers: int
    """Numbers of writers that have been used; at most 1,024."""
    edits: int
    """Edits sent to the other members; what is written between two waits of the program is one."""
    announced: int
    """Edits that were too large for a broadcast: members came for them."""
    unsent: int
    """Edits whose broadcast failed.  Members get them when they compare."""
    received: int
    """Edits of others that came."""
    applied: int
    """Edits of others that were merged."""
    early: int
    """Edits that built on what had not come, so that they were fetched with it."""
    compared: int
    """Comparisons with other members that this one has begun and finished."""
    uncompared: int
    """Comparisons that failed; they are begun again."""
    exchanged: int
    """Bytes that came by comparing."""
    evicted: int
    """Entries removed here because the document had more than twice its bytes."""
    unsaved: int
    """Attempts to write the copy on disk that failed."""
    refused: Mapping[str, int]
    """Messages that were refused, by reason: ``malformed``, ``stranger``."""


@final
class SharedState(SharedMap):
    """A document that every member of a cluster has a copy of.  Made by ``Node.state``.

    It is a map from keys to values, beside which it holds counters, sets and maps, by name.  Reads and writes are local
    and wait for nothing; each write is on its way to the other members when the program waits next, and what was
    written since it waited last is one change.  Others see all of it or none.
    Members that have the same writes are equal, whatever the order in which they came, and who was away meanwhile.
    A member sees a write only after those that its writer had seen.  Of two writes to one key the later one counts if
    its writer had seen the other; else one of the two, the same one everywhere.  No clock decides anything.

    Keys are texts of 1 to 1,024 bytes; values as in ``SharedMap``.  What is read is a copy.  For use in the trio run of
    its node.
    """

    def __init__(
        self,
        members: StateMembers,
        *,
        max_bytes: int,
        path: Path | None,
        allow: frozenset[str],
        random: Random,
        wall_clock: Callable[[], float],
        check_open: Callable[[], None],
    ) -> None:
        self.name: Final = members.cluster
        """The cluster whose document this is."""
        self._members = members
        self._path = path
        self._allow = allow
        self._random = random
        self._check_open = check_open
        self._max_bytes = max_bytes
        replica = Replica(self, random=random, wall_clock=wall_clock, max_bytes=max_bytes, claimed=self._claimed)
        super().__init__(replica, "")
        self._claims: dict[int, NodeId] = {}
        """Numbers of writers, and the members that use them, or have said that they are used."""
        self._watches: WeakSet[StateWatch] = WeakSet()
        self._edited = Wakeup()
        self._changed = trio.lowlevel.ParkingLot()
        self._unsaved = trio.Event()
        self._is_unsaved = False
        """Whether the last attempt to save has failed."""
        self._wanted: dict[NodeId, None] = {}
        """Members that have something that is missing here."""
        self._wants = Wakeup()
        self._comparing: set[NodeId] = set()
        self._fetching = trio.Semaphore(_SYNCS_AT_A_TIME)
        self._serving = trio.Semaphore(_SYNCS_AT_A_TIME)
        self._served: dict[NodeId, trio.CancelScope] = {}
        """Members that compare with this one: each once at a time, so that none has all places."""
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._suspects: set[NodeId] = set()

    def map(self, name: str) -> SharedMap:
        """Return the map of a name: one beside that of the document itself, with counters and sets of its own."""
        return SharedMap(self._replica, check_key(name, "name"))

    # -- following ------------------------------------------------------------------------------------------

    def watch(self, pattern: str = ">") -> StateWatch:
        """Follow what a pattern matches, here as everywhere: an async iterator of ``StateChange``, see ``StateWatch``.

        What is there comes first: values by their keys, sorted, then the other types by kind and name.

        Args:
            pattern: keys and names are read as topics: tokens joined by dots, of which ``*`` matches one and a last
                ``>`` the rest.

        Raises:
            ConfigError: it is no pattern.
        """
        check_pattern(pattern)
        self._check_open()
        watch = StateWatch(pattern, self._present(), self._read, self._is_there)
        self._watches.add(watch)
        return watch

    def _present(self) -> list[tuple[Kind, str]]:
        others: set[tuple[Kind, str]] = set()
        for kind, place, name in self._replica.groups():
            if place:
                others.add(("map", place))
            elif kind == SET:
                others.add(("set", name))
        values: list[tuple[Kind, str]] = [("value", key) for key in self]
        counters: list[tuple[Kind, str]] = [("counter", name) for name in self._replica.keys((COUNTER, "", ""))]
        return [*values, *counters, *sorted(others)]

    def _read(self, kind: Kind, key: str) -> StateChange:
        removed = kind == "value" and key not in self
        value = None if removed else self[key] if kind == "value" else None
        if kind == "counter":
            value = self.counter(key).value
        return StateChange(key=key, kind=kind, value=value, removed=removed)

    def _is_there(self, kind: Kind, key: str) -> bool:
        match kind:
            case "value":
                return key in self
            case "map":
                return self._replica.has_map(key)
            case "set":
                return bool(self.set(key))
            case "counter":
                return self._replica.has((COUNTER, "", ""), key)

    async def settled(self, members: int | None = None, timeout: float = 5.0) -> None:
        """Wait until members have everything that this one has now.

        Args:
            members: how many, this one included; None: all that are there now.
            timeout: seconds.

        Raises:
            RequestTimeout: they do not within that time.
            ConfigError: an argument is none that can be waited for.

        Cancelling it leaves nothing behind.
        """
        self._check_open()
        if members is not None and (as_whole(members) or 0) < 1:
            raise ConfigError(f"members is {shown(members)}: use a whole number above 0, or None")
        within = as_float(timeout)
        if not within > 0:
            raise ConfigError(f"timeout is {shown(timeout)}: use seconds above 0")
        needed = members if members is not None else len(self._members.others()) + 1
        settled: set[NodeId] = {self._members.own}
        deadline = trio.current_time() + within
        with trio.move_on_at(deadline):
            while True:
                while self._replica.is_rewriting:
                    await self._changed.park()
                writer, vector = self._replica.writer, encode(self._replica.vector)
                await self._wait_reached(vector, settled, needed, deadline)
                # Counts say nothing where another one has written with the same number: then it shows by comparing,
                # and what was lost is written anew with another number.
                settled = {self._members.own, *await self._compare_with(settled - {self._members.own}, deadline)}
                if self._replica.writer != writer or self._replica.is_rewriting:
                    settled = {self._members.own}
                elif len(settled) >= needed:
                    return
                else:
                    await trio.sleep(_PATIENCE)
        raise RequestTimeout(
            f"{len(settled)} of {needed} members of {self.name!r} have what this one has written after {timeout:g} s"
        )

    async def _wait_reached(self, vector: bytes, settled: set[NodeId], needed: int, deadline: float) -> None:
        """Wait until so many members have what a vector counts."""
        while len(settled) < needed:
            if len(self._members.others()) + 1 < needed:
                await self._members.wait_news()
                continue
            with suppress(NoSuchCluster):
                left = max(deadline - trio.current_time(), 0.001)
                async with self._members.survey(_REACHED, vector, timeout=left, count=needed) as answers:
                    async for answer in answers:
                        settled.add(answer.member)
            if len(settled) < needed:  # a member refused, for it does not know of this one yet, or was lost
                with trio.move_on_after(_PATIENCE):
                    await self._members.wait_news()

    async def _compare_with(self, members: Collection[NodeId], deadline: float) -> set[NodeId]:
        """Compare with members, and have those compare that have something else; return who has done it."""
        compared: set[NodeId] = set()
        different = False

        async def compare(member: NodeId) -> None:
            nonlocal different
            with suppress(IrisError):
                different = await self._compare(member) or different
                compared.add(member)

        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(compare, member)
        if different and not self._replica.is_rewriting:
            answered: set[NodeId] = set()
            left = max(deadline - trio.current_time(), 0.001)
            with suppress(NoSuchCluster):
                async with self._members.survey(_COMPARE, b"", timeout=left, count=len(members) + 1) as answers:
                    async for answer in answers:
                        answered.add(answer.member)
            compared &= answered
        return compared

    def statistics(self) -> StateStatistics:
        """Return a snapshot of the counters."""
        counts = self._counts
        return StateStatistics(
            keys=len(self),
            bytes=self._replica.size,
            writers=len(self._replica.vector),
            edits=counts["edits"],
            announced=counts["announced"],
            unsent=counts["unsent"],
            received=counts["received"],
            applied=counts["applied"],
            early=counts["early"],
            compared=counts["compared"],
            uncompared=counts["uncompared"],
            exchanged=counts["exchanged"],
            evicted=self._replica.evicted,
            unsaved=counts["unsaved"],
            refused=dict(self._refused),
        )

    # -- running --------------------------------------------------------------------------------------------

    def _service(self) -> Service:
        """Return what this member answers to the others."""
        service = Service(self.name)
        service.broadcast(self._receive_edit)
        service.request(_REACHED)(self._reached)
        service.request(_COMPARE)(self._compare_when_asked)
        service.tunnel(_SYNC)(self._serve_sync)
        Programs(self._replica, self._check_program, self.watch).serve(service)
        return service

    def _end_watches(self) -> None:
        """Nothing changes any more for those who follow."""
        for watch in list(self._watches):
            watch._end()

    @asynccontextmanager
    async def _running(self, timeout: float) -> AsyncIterator[None]:
        """Keep the document equal to those of the others; the block begins when it has what one of them has.

        Raises:
            RequestTimeout: there are members, and none of them gives it.
            ConfigError: they serve something else.
        """
        async with open_background() as nursery:
            for task in (self._send_edits, self._compare_now_and_then, self._fetch_missing):
                nursery.start_soon(task)
            if self._path is not None:
                nursery.start_soon(self._save_changes, self._path)
            try:
                await self._catch_up(timeout)
                yield
            finally:
                self._closed = True
                self._end_watches()
                self._changed.unpark_all()
                with trio.move_on_after(_GOODBYE) as scope:
                    scope.shield = True
                    await self._say_goodbye()
                if self._path is not None:
                    with trio.CancelScope(shield=True):
                        await self._save(self._path, ends=True)

    async def _load(self) -> None:
        """Begin with the copy on disk.

        Raises:
            ConfigError: it cannot be read.
        """
        if self._path is None:
            return
        data = await run_in_thread(load_copy, self._path)
        if data is None:
            return
        try:
            copy = read_untrusted(data, _Copy)
            entries = {entry.dot: entry for piece in copy.pieces for entry in read_entries_untrusted(piece)}
            self._replica.absorb(copy.vector, range(BUCKETS), entries)
        except RemoteProtocolError:
            raise damaged_copy(self._path) from None

    async def _catch_up(self, timeout: float) -> None:
        """Compare with the members, one after another, until one of them has given the document.

        One that takes long is waited for no longer than until others are asked beside it: it may stand still.
        """
        elsewhere: set[NodeId] = set()
        given = False
        progress = Wakeup()

        async def ask(member: NodeId) -> None:
            nonlocal given
            try:
                await self._compare(member)
                given = True
            except RemoteError as error:
                if error.code == "no_such_operation":
                    elsewhere.add(member)
            except IrisError:  # it leaves, or is lost: then it is no member for long
                pass
            finally:
                self._comparing.discard(member)
                self._wants.wake()
                progress.wake()

        with trio.move_on_after(timeout):
            async with open_background() as nursery:
                patience = _ANOTHER
                while others := self._members.others():
                    if elsewhere.issuperset(others):
                        raise ConfigError(f"{self.name!r} serves something else: give the document a name of its own")
                    free = [one for one in others if one not in elsewhere and one not in self._comparing]
                    if free:
                        member = self._random.choice(free)
                        self._comparing.add(member)
                        nursery.start_soon(ask, member)
                    with trio.move_on_after(patience) as waiting:
                        await progress.wait()
                    if given:
                        return
                    if waiting.cancelled_caught:
                        patience *= 2
                    else:
                        with trio.move_on_after(_PATIENCE):
                            await self._members.wait_news()
            return
        raise RequestTimeout(f"no member of {self.name!r} gives the document within {timeout:g} s")

    async def _say_goodbye(self) -> None:
        """Have a member fetch what may have reached nobody."""
        if self._members.others() and self._replica.writer >= 0:
            with suppress(IrisError):
                vector = encode(self._replica.vector)
                async with self._members.survey(_REACHED, vector, timeout=_GOODBYE, count=2) as answers:
                    async for _ in answers:
                        pass

    # -- what the replica notes --------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Make sure that others will get what is written.

        Raises:
            trio.ClosedResourceError: the block of the document or of its node was left.
        """
        if self._closed:
            raise trio.ClosedResourceError(
                f"the block of the document {self.name!r} was left: nobody gets what is written"
            )
        self._check_open()

    def note_edit(self) -> None:
        """Have what was written sent when the program waits next."""
        self._edited.wake()
        self._note_news()

    def note_change(self, kind: Kind, key: str) -> None:
        """Have those that watch see that an entry has come or gone."""
        for watch in list(self._watches):
            watch._note(kind, key)

    def _note_news(self) -> None:
        self._changed.unpark_all()
        self._unsaved.set()

    def _claimed(self) -> frozenset[int]:
        """Return the numbers of writers that other members use."""
        self._claims = {number: node for number, node in self._claims.items() if self._members.has(node)}
        return frozenset(self._claims)

    # -- edits that go out ----------------------------------------------------------------------------------

    async def _send_edits(self) -> None:
        while True:
            await self._edited.wait()
            for edit in self._replica.take_edits():
                if not self._members.others():
                    continue
                self._counts["edits"] += 1
                data = encode(edit)
                if len(data) > _BROADCAST or max(len(edit.added), len(edit.removed)) > AT_A_TIME:
                    self._counts["announced"] += 1
                    data = encode(Edit(edit.writer, 0, 0, dict(self._replica.vector), [], []))
                try:
                    await self._members.broadcast(data)
                except DeliveryError:
                    self._counts["unsent"] += 1

    # -- edits that come in ---------------------------------------------------------------------------------

    def _receive_edit(self, message: Message) -> None:
        sender = message.sender
        if sender.node == self._members.own:
            return
        if not self._members.has(sender.node):
            self._refuse(sender, "stranger", "it is no member")
            return
        self._counts["received"] += 1
        try:
            data = message.payload
            if not isinstance(data, bytes) or len(data) > _BROADCAST:
                raise RemoteProtocolError(f"an edit is no bytes, or has more than {_BROADCAST}")
            edit = read_edit_untrusted(data)
            applied = self._replica.apply(edit)
        except RemoteProtocolError as error:
            self._refuse(sender, "malformed", str(error))
            return
        if not applied:  # it comes with what it builds on
            self._counts["early"] += 1
            self._want(sender.node)
        elif edit.count:
            self._counts["applied"] += 1
            self._claims[edit.writer] = sender.node
            self._note_news()

    def _want(self, member: NodeId) -> None:
        self._wanted[member] = None
        self._wants.wake()

    def _refuse(self, sender: Sender, reason: str, text: str) -> None:
        self._refused[reason] += 1
        if sender.node not in self._suspects and len(self._suspects) < _LOGGED:
            self._suspects.add(sender.node)
            _log.warning(
                "the document %s refuses a message of node %s of cluster %s: %s",
                self.name,
                sender.node,
                sender.cluster,
                text,
                extra={"cluster": self.name, "peer": sender.node, "reason": reason},
            )

    # -- comparing ------------------------------------------------------------------------------------------

    async def _compare_now_and_then(self) -> None:
        while True:
            await trio.sleep(_INTERVAL * self._random.uniform(0.75, 1.25))
            if others := self._members.others():
                self._want(self._random.choice(others))

    async def _fetch_missing(self) -> None:
        """Compare with the members that are wanted, with several at a time: one that stalls holds up no other."""
        async with open_background() as nursery:
            while True:
                await self._wants.wait()
                for member in [member for member in self._wanted if member not in self._comparing]:
                    self._comparing.add(member)
                    nursery.start_soon(self._fetch_from, member)

    async def _fetch_from(self, member: NodeId) -> None:
        try:
            async with self._fetching:
                while member in self._wanted:
                    del self._wanted[member]
                    if self._members.has(member):
                        with suppress(IrisError):
                            await self._compare(member)
        finally:
            self._comparing.discard(member)

    async def _compare(self, member: NodeId) -> bool:
        """Get what one member has and this one lacks; tell whether their documents were different.

        Raises:
            IrisError: that failed; the document is as it was.
        """
        finished = False
        try:
            with trio.fail_after(_SYNC_TIMEOUT):
                async with self._members.open_tunnel(member, _SYNC, _SYNC_TIMEOUT) as tunnel:
                    received, claimed = await pull(tunnel, self._replica, _ALLOWANCE * self._max_bytes)
            for number in claimed:
                self._claims.setdefault(number, member)
            if received:
                self._counts["exchanged"] += received
                self._note_news()
            finished = True
            return bool(received)
        except RemoteProtocolError as error:
            self._refuse(Sender(self.name, member), "malformed", str(error))
            raise
        except trio.TooSlowError:
            raise RequestTimeout(f"node {member} takes longer than {_SYNC_TIMEOUT:g} s to compare a document") from None
        finally:
            self._counts["compared" if finished else "uncompared"] += 1

    async def _serve_sync(self, tunnel: Tunnel) -> None:
        await self._check_member(tunnel.sender)
        node = tunnel.sender.node
        if node in self._served:  # who asks again has given up what it asked before
            self._served[node].cancel()
        with trio.CancelScope() as scope:
            self._served[node] = scope
            try:
                async with self._serving:
                    with trio.move_on_after(_SYNC_TIMEOUT):
                        own = {self._replica.writer} - {-1}
                        vector = await serve(tunnel, self._replica, self._claimed() | own)
                        if vector is not None and not self._replica.covers(vector):
                            self._want(node)
            except RemoteProtocolError as error:
                self._refuse(tunnel.sender, "malformed", str(error))
                raise RemoteError("malformed", str(error)) from None
            finally:
                if self._served[node] is scope:
                    del self._served[node]

    async def _check_member(self, sender: Sender) -> None:
        """Make sure that a node is a member; one that has just become one is known shortly.

        Raises:
            RemoteError: it is none.
        """
        with trio.move_on_after(_KNOWN_WITHIN):
            while not self._members.has(sender.node):
                await self._members.wait_news()
            return
        self._refuse(sender, "stranger", "it is no member")
        raise RemoteError(
            _NOT_A_MEMBER, f"node {sender.node} of cluster {sender.cluster!r} is no member of {self.name!r}"
        )

    def _check_program(self, sender: Sender) -> None:
        """Make sure that a node may use the document.

        Raises:
            RemoteError: it is neither a member nor allowed.
        """
        if sender.cluster not in self._allow and not self._members.has(sender.node):
            self._refuse(sender, "stranger", "it is neither a member nor allowed")
            raise RemoteError("not_allowed", f"nodes of cluster {sender.cluster!r} may not use {self.name!r}")

    # -- answering ------------------------------------------------------------------------------------------

    async def _reached(self, request: Request) -> None:
        """Return when everything is here that a vector counts."""
        await self._check_member(request.sender)
        try:
            if not isinstance(request.payload, bytes):
                raise RemoteProtocolError("a vector is not bytes")
            vector = read_untrusted(request.payload, Vector)
        except RemoteProtocolError as error:
            self._refuse(request.sender, "malformed", str(error))
            raise RemoteError("malformed", str(error)) from None
        if not self._replica.covers(vector):
            with trio.move_on_after(_PATIENCE):
                await self._wait_covered(vector)
                return
            self._want(request.sender.node)
            await self._wait_covered(vector)

    async def _compare_when_asked(self, request: Request) -> None:
        """Get what the member has that asks."""
        await self._check_member(request.sender)
        if request.sender.node != self._members.own:
            async with self._fetching:
                await self._compare(request.sender.node)

    async def _wait_covered(self, vector: Mapping[int, int]) -> None:
        while not self._replica.covers(vector):
            if self._closed:
                raise RemoteError("leaving", f"this member leaves {self.name!r}")
            await self._changed.park()

    # -- copy on disk ---------------------------------------------------------------------------------------

    async def _save_changes(self, path: Path) -> None:
        while True:
            await self._unsaved.wait()
            await trio.sleep(_SAVE_AFTER)
            self._unsaved = trio.Event()
            if not await self._save(path):
                self._unsaved.set()

    async def _save(self, path: Path, *, ends: bool = False) -> bool:
        vector, entries = dict(self._replica.vector), self._replica.all_entries()
        try:
            await run_in_thread(partial(_save, path, vector, entries), else_here=ends)
        except ConfigError as error:
            self._counts["unsaved"] += 1
            lost = ends and self._unsaved.is_set()
            if lost or not (ends or self._is_unsaved):
                _log.warning(
                    "the document %s is not saved, and %s: %s",
                    self.name,
                    "this node ends: its copy lacks the newest edits" if lost else "tried again",
                    error,
                    extra={"cluster": self.name, "reason": str(error)},
                )
            self._is_unsaved = True
            return False
        if self._is_unsaved:
            self._is_unsaved = False
            _log.info("the document %s is saved again", self.name, extra={"cluster": self.name})
        return True


def _save(path: Path, vector: Vector, entries: list[Entry]) -> None:
    pieces = [encode(entries[at : at + _PER_PIECE]) for at in range(0, len(entries), _PER_PIECE)]
    save_copy(path, encode(_Copy(vector, pieces)))
