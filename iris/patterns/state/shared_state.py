"""SharedState: a document that all members of a cluster have, and the tasks that keep their copies equal.

An edit goes out as one broadcast to the members (tens of bytes beside what was edited).  What a member misses, because
it was away or a message was lost, it gets by comparing with others: every two seconds with one of them, drawn at
random, and at once when an edit comes that builds on what it lacks.  Two members compare by a tunnel: 16 bytes if they
are equal, else what each has written so far, and then what the other one lacks.

A node that has proved the right to serve the cluster may read and write the document; no other gets anything of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final, final
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
from iris.kernel.numerals import as_float
from iris.kernel.tasks import Wakeup, open_background, run_in_thread
from iris.patterns.messages import Message, Request, Sender
from iris.patterns.pubsub.interest import check_pattern
from iris.patterns.service import Service
from iris.patterns.state.kept_copy import damaged_copy, load_copy, save_copy
from iris.patterns.state.members import StateMembers
from iris.patterns.state.replica import Kind, MissingUpdates, Replica, check_document_key
from iris.patterns.state.shared_types import SharedCounter, SharedList, SharedMap, SharedSet, SharedText
from iris.patterns.state.updates import UpdateExtent, read_vector_untrusted, write_vector
from iris.patterns.state.watch import StateChange, StateWatch
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")

MAX_KEYS: Final = 131_072
MAX_BYTES: Final = 16 * MIB

_INTERVAL: Final = 2.0
"""Seconds between two comparisons with a member drawn at random, a quarter more or less."""
_SYNC_TIMEOUT: Final = 30.0
"""Seconds that comparing with a member may take, with all that goes over then."""
_SYNCS_AT_A_TIME: Final = 8
"""Members that compare with this one at a time, and with which this one does; others wait."""
_PATIENCE: Final = 0.1
"""Seconds that an edit waits for another one that it builds on, before that is asked for."""
_HELD: Final = 256
"""Edits that wait for others."""
_BROADCAST: Final = 256 * KIB
"""Bytes of an edit that goes out by itself.  A larger one is announced, and the members come for it."""
_PIECE: Final = 64 * KIB
_MORE: Final = b"\x00"
_LAST: Final = b"\x01"
"""How a piece of an update begins that goes to a program, or comes from one."""
_IN_THREAD: Final = 64 * KIB
"""Bytes of an update from which on it is read in a thread: 1 MB takes 40 ms."""
_SAVE_AFTER: Final = 1.0
"""Seconds after a change until the copy on disk is written."""
_GOODBYE: Final = 1.0
_KNOWN_WITHIN: Final = 2.0
"""Seconds within which a member that compares has to be known as one here."""
_LOGGED: Final = 64
"""Members whose updates were refused of which the log tells."""

_SYNC: Final = "sync"
_JOIN: Final = "join"
_REACHED: Final = "reached"
_NOT_A_MEMBER: Final = "not_a_member"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatistics:
    """Counters of a document at one member."""

    keys: int
    """Values, without those in other shared types."""
    bytes: int
    """Of the document, at most."""
    writers: int
    """Replicas that have written in it, those that are gone included: each start of a member that writes is one."""
    edits: int
    """Sent to the other members; several within one step of the program are one."""
    announced: int
    """Those of the edits that were too large for a broadcast: members came for them."""
    unsent: int
    """Edits whose broadcast failed.  Members get them when they compare."""
    received: int
    """Edits of others that came."""
    applied: int
    """Those that brought something; the others were known already."""
    early: int
    """Those that built on what had not come, and had to wait for it."""
    compared: int
    """Comparisons with other members that this one has begun and finished."""
    uncompared: int
    """Comparisons that failed; they are begun again."""
    exchanged: int
    """Bytes that came by comparing, and brought something."""
    unsaved: int
    """Attempts to write the copy on disk that failed."""
    refused: Mapping[str, int]
    """Updates that were refused, by reason: ``malformed``, ``stranger``."""


@final
class _Edit(Struct, frozen=True):
    """An edit that came: what its writer had seen, and what was written; without an extent it is only announced."""

    sender: NodeId
    needs: Mapping[int, int]
    update: bytes
    extent: UpdateExtent | None


@final
class SharedState(MutableMapping[str, Any]):
    """A document that every member of a cluster has a copy of.  Made by ``Node.state``.

    It is a map from keys to values, beside which it holds counters, sets, maps, lists and texts, by name.  Reads and
    writes are local and wait for nothing; each write is on its way to the other members when the program waits next.
    Members that have the same writes are equal, whatever the order in which they came, and who was away meanwhile.
    A member sees a write only after those that its writer had seen.  Of two writes to one key the later one counts if
    its writer had seen the other; else one of the two, the same one everywhere.  No clock decides anything.

    Keys are texts of 1 to 1,024 bytes; values as in ``SharedMap``.  What is read is a copy: to change a list, set it,
    or use ``list``.  For use in the trio run of its node.
    """

    def __init__(
        self,
        members: StateMembers,
        number: int,
        *,
        max_keys: int,
        max_bytes: int,
        path: Path | None,
        allow: frozenset[str],
        random: Random,
        check_open: Callable[[], None],
    ) -> None:
        self.name: Final = members.cluster
        """The cluster whose document this is."""
        self._members = members
        self._path = path
        self._allow = allow
        self._random = random
        self._check_open = check_open
        self._limit = 2 * max_bytes
        self._replica = Replica(number, max_keys=max_keys, max_bytes=max_bytes)
        self._replica.check_open = self._check_usable
        self._replica.on_edit = self._note_edit
        self._values = SharedMap(self._replica, "values")
        self._watches: WeakSet[StateWatch] = WeakSet()
        self._edited = Wakeup()
        self._changed = trio.lowlevel.ParkingLot()
        self._unsaved = trio.Event()
        self._wanted: dict[NodeId, None] = {}
        """Members that have something that is missing here."""
        self._wants = Wakeup()
        self._comparing: set[NodeId] = set()
        self._fetching = trio.Semaphore(_SYNCS_AT_A_TIME)
        self._held: list[_Edit] = []
        self._holding = Wakeup()
        self._serving = trio.Semaphore(_SYNCS_AT_A_TIME)
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._suspects: set[NodeId] = set()

    def __repr__(self) -> str:
        return f"<SharedState {self.name!r}: {len(self)} keys>"

    # -- values ---------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: object) -> None:
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        """Sorted: in the same order at every member."""
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def update(self, other: Mapping[str, object] = MappingProxyType({}), /, **values: object) -> None:  # type: ignore[override]
        """Set several values, as one change."""
        self._values.update(other, **values)

    # -- other types ----------------------------------------------------------------------------------------

    def counter(self, name: str) -> SharedCounter:
        """Return the counter of a name: every name has one, which is 0 at first."""
        return SharedCounter(self._replica, check_document_key(name, "name"))

    def set(self, name: str) -> SharedSet:
        """Return the set of a name."""
        return SharedSet(self._replica, check_document_key(name, "name"))

    def map(self, name: str) -> SharedMap:
        """Return the map of a name: one beside that of the document itself."""
        return SharedMap(self._replica, f"map/{check_document_key(name, 'name')}")

    def list(self, name: str) -> SharedList:
        """Return the list of a name."""
        return SharedList(self._replica, check_document_key(name, "name"))

    def text(self, name: str) -> SharedText:
        """Return the text of a name."""
        return SharedText(self._replica, check_document_key(name, "name"))

    def edit(self) -> AbstractContextManager[None]:
        """Make all changes of a block one: no member sees some of them without the others.

        The block must not wait.  If it raises, what it had changed stays.
        """
        return self._replica.edit()

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
        present: list[tuple[Kind, str]] = [*(("value", key) for key in self), *self._replica.names()]
        watch = StateWatch(pattern, present, self._read, self._is_there)
        if not self._watches:
            self._replica.follow(self._note_change)
        self._watches.add(watch)
        return watch

    def _read(self, kind: Kind, key: str) -> StateChange:
        removed = not self._is_there(kind, key)
        value = None if removed else self[key] if kind == "value" else None
        if kind == "counter":
            value = self.counter(key).value
        return StateChange(key=key, kind=kind, value=value, removed=removed)

    def _is_there(self, kind: Kind, key: str) -> bool:
        return kind != "value" or key in self

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
        if members is not None and (isinstance(members, bool) or not isinstance(members, int) or members < 1):
            raise ConfigError(f"members is {members!r}: use a whole number above 0, or None")
        within = as_float(timeout)
        if not within > 0:
            raise ConfigError(f"timeout is {timeout!r}: use seconds above 0")
        vector = write_vector(self._replica.vector)
        needed = members if members is not None else len(self._members.others()) + 1
        settled: set[NodeId] = {self._members.own}
        deadline = trio.current_time() + within
        with trio.move_on_at(deadline):
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
            return
        raise RequestTimeout(
            f"{len(settled)} of {needed} members of {self.name!r} have what this one has written after {timeout:g} s"
        )

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
            unsaved=counts["unsaved"],
            refused=dict(self._refused),
        )

    # -- running --------------------------------------------------------------------------------------------

    def _service(self) -> Service:
        """Return what this member answers to the others."""
        service = Service(self.name)
        service.broadcast(self._receive_edit)
        service.request(_REACHED)(self._reached)
        service.tunnel(_SYNC)(self._serve_sync)
        service.tunnel(_JOIN)(self._serve_program)
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
            for task in (self._send_edits, self._compare_now_and_then, self._fetch_missing, self._take_held):
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
                        await self._save(self._path)

    async def _load(self) -> None:
        """Begin with the copy on disk.

        Raises:
            ConfigError: it cannot be read.
        """
        if self._path is None:
            return
        update = await run_in_thread(load_copy, self._path)
        if update is not None:
            try:
                self._replica.load(update)
            except (RemoteProtocolError, MissingUpdates):
                raise damaged_copy(self._path) from None

    async def _catch_up(self, timeout: float) -> None:
        with trio.move_on_after(timeout):
            while others := self._members.others():
                member = self._random.choice(others)
                try:
                    await self._compare(member)
                except RemoteError as error:
                    if error.code == "no_such_operation":
                        raise ConfigError(
                            f"{self.name!r} serves something else: give the document a name of its own"
                        ) from None
                except IrisError:  # it leaves, or is lost: then it is no member for long
                    pass
                else:
                    return
                with trio.move_on_after(_PATIENCE):
                    await self._members.wait_news()
            return
        raise RequestTimeout(f"no member of {self.name!r} gives the document within {timeout:g} s")

    async def _say_goodbye(self) -> None:
        """Give a member what may have reached nobody."""
        others = self._members.others()
        if others and self._replica.has_written:
            with suppress(IrisError):
                await self._compare(self._random.choice(others))

    # -- edits that go out ----------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(
                f"the block of the document {self.name!r} was left: nobody gets what is written"
            )
        self._check_open()

    def _note_edit(self) -> None:
        self._edited.wake()
        self._note_news()

    def _note_news(self) -> None:
        self._changed.unpark_all()
        self._unsaved.set()

    def _note_change(self, kind: Kind, key: str) -> None:
        for watch in list(self._watches):
            watch._note(kind, key)

    async def _send_edits(self) -> None:
        while True:
            await self._edited.wait()
            edits = self._replica.take_edits()
            if edits is None or not self._members.others():
                continue
            needs, update = edits
            self._counts["edits"] += 1
            if len(update) > _BROADCAST:
                self._counts["announced"] += 1
                needs, update = write_vector(self._replica.vector), b""
            if len(needs) > _BROADCAST:
                continue  # of some 20,000 writers: members find it when they compare
            try:
                await self._members.broadcast([needs, update])
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
            edit = self._edit_untrusted(sender.node, message.payload)
            if self._take_edit(edit):
                self._retry_held()
            else:
                self._counts["early"] += 1
                self._hold(edit)
        except RemoteProtocolError as error:
            self._refuse(sender, "malformed", str(error))

    def _edit_untrusted(self, sender: NodeId, payload: object) -> _Edit:
        """Read an edit.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        match payload:
            case [bytes() as needs, bytes() as update]:
                if (size := max(len(needs), len(update))) > _BROADCAST:
                    raise RemoteProtocolError(f"an edit has {size} bytes: above {_BROADCAST} it is announced")
                extent = self._replica.extent_untrusted(update) if update else None
                return _Edit(sender, read_vector_untrusted(needs), update, extent)
            case _:
                raise RemoteProtocolError("an edit of a document is not made of two pieces")

    def _take_edit(self, edit: _Edit) -> bool:
        """Take an edit, or tell that something has to come before it.

        Raises:
            RemoteProtocolError: the document refuses it.
        """
        if not self._replica.covers(edit.needs):
            return False
        try:
            if edit.extent is not None and self._replica.apply(edit.update, edit.extent):
                self._counts["applied"] += 1
                self._suspects.discard(edit.sender)
                self._note_news()
        except MissingUpdates:
            return False
        return True

    def _hold(self, edit: _Edit) -> None:
        """Keep an edit until what it builds on has come; one that is only announced is fetched at once."""
        if edit.extent is not None and len(self._held) < _HELD:
            self._held.append(edit)
            self._holding.wake()
        else:
            self._want(edit.sender)

    def _retry_held(self) -> None:
        """Take the edits that now have all that they build on."""
        progress = bool(self._held)
        while progress:
            progress = False
            waiting, self._held = self._held, []
            for edit in waiting:
                try:
                    if self._take_edit(edit):
                        progress = True
                    else:
                        self._held.append(edit)
                except RemoteProtocolError as error:
                    self._refuse(Sender(self.name, edit.sender), "malformed", str(error))

    async def _take_held(self) -> None:
        """Ask for what edits build on, if it does not come by itself."""
        while True:
            await self._holding.wait()
            await trio.sleep(_PATIENCE)
            for edit in self._held:
                self._want(edit.sender)

    def _want(self, member: NodeId) -> None:
        self._wanted[member] = None
        self._wants.wake()

    def _refuse(self, sender: Sender, reason: str, text: str) -> None:
        self._refused[reason] += 1
        if sender.node not in self._suspects and len(self._suspects) < _LOGGED:
            self._suspects.add(sender.node)
            _log.warning(
                "the document %s takes nothing from node %s of cluster %s: %s",
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

    async def _compare(self, member: NodeId) -> None:
        """Compare with one member, and give each what it lacks.

        Raises:
            IrisError: that failed; what had come is kept.
        """
        finished = False
        try:
            with trio.fail_after(_SYNC_TIMEOUT):
                async with self._members.open_tunnel(member, _SYNC, _SYNC_TIMEOUT) as tunnel:
                    await tunnel.send(self._replica.digest())
                    theirs = await _receive_bytes(tunnel)
                    if theirs:
                        vector = read_vector_untrusted(theirs)
                        await tunnel.send(write_vector(self._replica.vector))
                        await self._send_update(tunnel, vector)
                        await self._receive_update(tunnel)
            finished = True
        except RemoteProtocolError as error:
            self._refuse(Sender(self.name, member), "malformed", str(error))
            raise
        except trio.TooSlowError:
            raise RequestTimeout(f"node {member} takes longer than {_SYNC_TIMEOUT:g} s to compare a document") from None
        finally:
            self._counts["compared" if finished else "uncompared"] += 1

    async def _serve_sync(self, tunnel: Tunnel) -> None:
        await self._check_member(tunnel.sender)
        async with self._serving:
            try:
                with trio.move_on_after(_SYNC_TIMEOUT):
                    if await _receive_bytes(tunnel) == self._replica.digest():
                        await tunnel.send(b"")
                        return
                    await tunnel.send(write_vector(self._replica.vector) or b"\x00")
                    vector = read_vector_untrusted(await _receive_bytes(tunnel))
                    await self._receive_update(tunnel)
                    await self._send_update(tunnel, vector)
            except RemoteProtocolError as error:
                self._refuse(tunnel.sender, "malformed", str(error))
                raise RemoteError("malformed", str(error)) from None
            except MissingUpdates:
                self._refuse(tunnel.sender, "malformed", "it leaves something out")
                raise RemoteError("malformed", "the update leaves something out") from None

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

    async def _send_update(self, tunnel: Tunnel, vector: Mapping[int, int]) -> None:
        """Send what a replica with this vector lacks, and that it is all."""
        update = b"" if self._is_covered(vector) else self._replica.difference(write_vector(vector))
        for position in range(0, len(update), _PIECE):
            await tunnel.send(update[position : position + _PIECE])
        await tunnel.send(b"")

    def _is_covered(self, vector: Mapping[int, int]) -> bool:
        return all(vector.get(replica, 0) >= clock for replica, clock in self._replica.vector.items())

    async def _receive_update(self, tunnel: Tunnel) -> None:
        update = bytearray()
        while piece := await _receive_bytes(tunnel):
            update += piece
            if len(update) > self._limit:
                raise RemoteProtocolError(
                    f"a member gives more than {self._limit} bytes, twice what a document may have"
                )
        if not update:
            return
        data = bytes(update)
        if len(data) > _IN_THREAD:
            extent = await run_in_thread(self._replica.extent_untrusted, data)
        else:
            extent = self._replica.extent_untrusted(data)
        try:
            if self._replica.apply(data, extent):
                self._counts["exchanged"] += len(data)
                self._note_news()
                self._retry_held()
        except MissingUpdates:
            raise RemoteProtocolError("an update of a document leaves something out") from None

    # -- programs that are no members -----------------------------------------------------------------------

    async def _serve_program(self, tunnel: Tunnel) -> None:
        """Have the document in common with a program that speaks Yjs, in a browser for one, until it leaves.

        What it edits counts as edits of this member: others get them from here.
        """
        sender = tunnel.sender
        if sender.cluster not in self._allow and not self._members.has(sender.node):
            self._refuse(sender, "stranger", "it is neither a member nor allowed")
            raise RemoteError("not_allowed", f"nodes of cluster {sender.cluster!r} may not edit {self.name!r}")
        try:
            theirs = read_vector_untrusted(await _receive_bytes(tunnel))
            await tunnel.send(write_vector(self._replica.vector))
            async with open_background() as nursery:
                nursery.start_soon(self._follow_for_program, tunnel, theirs)
                await self._take_from_program(tunnel, theirs)
        except (RemoteProtocolError, MissingUpdates) as error:
            text = str(error) or "an update leaves something out"
            self._refuse(sender, "malformed", text)
            raise RemoteError("malformed", text) from None

    async def _follow_for_program(self, tunnel: Tunnel, theirs: dict[int, int]) -> None:
        """Send what a program lacks, now and whenever there is more: all that has come meanwhile as one update."""
        while not self._closed:
            if not self._is_covered(theirs):
                update = self._replica.difference(write_vector(theirs))
                theirs.update(self._replica.vector)
                for position in range(0, len(update), _PIECE):
                    mark = _MORE if position + _PIECE < len(update) else _LAST
                    await tunnel.send(mark + update[position : position + _PIECE])
            else:
                await self._changed.park()

    async def _take_from_program(self, tunnel: Tunnel, theirs: dict[int, int]) -> None:
        update = bytearray()
        async for piece in tunnel:
            if not isinstance(piece, bytes) or piece[:1] not in (_MORE, _LAST):
                raise RemoteProtocolError("a piece of an update begins with 0 or 1")
            update += piece[1:]
            if len(update) > self._limit:
                raise RemoteProtocolError(f"a program gives more than {self._limit} bytes")
            if piece[:1] == _LAST:
                data = bytes(update)
                update.clear()
                extent = self._replica.extent_untrusted(data)
                if self._replica.apply(data, extent, relay=True):
                    theirs.update({replica: end for replica, (_, end) in extent.blocks.items()})
                    self._note_news()

    # -- answering ------------------------------------------------------------------------------------------

    async def _reached(self, request: Request) -> None:
        """Return when everything is here that a vector counts."""
        await self._check_member(request.sender)
        if not isinstance(request.payload, bytes):
            raise RemoteError("malformed", "the vector is not bytes")
        try:
            vector = read_vector_untrusted(request.payload)
        except RemoteProtocolError as error:
            self._refuse(request.sender, "malformed", str(error))
            raise RemoteError("malformed", str(error)) from None
        if not self._replica.covers(vector):
            with trio.move_on_after(_PATIENCE):
                await self._wait_covered(vector)
                return
            self._want(request.sender.node)
            await self._wait_covered(vector)

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

    async def _save(self, path: Path) -> bool:
        update = self._replica.difference(b"")
        try:
            await run_in_thread(partial(save_copy, path, update))
        except ConfigError as error:
            self._counts["unsaved"] += 1
            if self._counts["unsaved"] == 1:
                _log.warning(
                    "the document %s is not saved, and tried again: %s",
                    self.name,
                    error,
                    extra={"cluster": self.name, "reason": str(error)},
                )
            return False
        return True


async def _receive_bytes(tunnel: Tunnel) -> bytes:
    try:
        message = await tunnel.receive()
    except trio.EndOfChannel:
        raise RemoteProtocolError("a member ended the comparison of a document early") from None
    if not isinstance(message, bytes):
        raise RemoteProtocolError("a member sent something else than bytes")
    return message
