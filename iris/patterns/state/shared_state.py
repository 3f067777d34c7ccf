"""SharedState: a document that all members of a cluster have, and the tasks that keep their copies equal.

An edit goes out as one broadcast to the members (tens of bytes beside what was edited).  What a member misses, because
it was away or a message was lost, it gets from others by anti-entropy: every two seconds it asks one of them, drawn at
random, whether it has something else, and at once when an edit comes that builds on what it lacks; see ``sync``.

A node that has proved the right to serve the cluster may read and write the document; no other gets anything of it but
by ``allow``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, Protocol, final

import trio

from iris.kernel.config import KIB
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
from iris.kernel.statistics import Statistics
from iris.kernel.tasks import Wakeup, checkpointed, open_background, run_in_thread, time_left
from iris.patterns.messages import Message, Request, Sender
from iris.patterns.pubsub.interest import check_pattern
from iris.patterns.service import Service
from iris.patterns.state.entries import (
    AT_A_TIME,
    Edit,
    Entry,
    Vector,
    check_key,
    encode,
    read_edit_untrusted,
    read_untrusted,
)
from iris.patterns.state.kept_copy import load_copy, save_copy
from iris.patterns.state.members import StateMembers
from iris.patterns.state.programs import serve_programs
from iris.patterns.state.replica import Replica, generation
from iris.patterns.state.shared_types import SharedMap
from iris.patterns.state.sync import USERS, Claim, Snapshot, in_steps, pull, serve
from iris.patterns.state.watch import Changes, StateWatch
from iris.patterns.tunnel import Tunnel

_log: Final = logging.getLogger("iris")

_INTERVAL: Final = 2.0
"""Seconds between two comparisons with a member drawn at random, a quarter more or less."""
_SYNC_TIMEOUT: Final = 30.0
"""Seconds that comparing with a member may take, with all that goes over then."""
_SYNCS_AT_A_TIME: Final = 8
"""Members that compare with this one at a time, and with which this one does; others wait."""
_ANOTHER: Final = 1.0
"""Seconds without an answer until a member that begins asks a second one; twice that until the third, and so on."""
_PATIENCE: Final = 0.1
"""Seconds for what comes a little later: a member that is new, or an edit that another one builds on."""
_BROADCAST: Final = 256 * KIB
"""Size limit of a broadcast edit, in bytes, with ``AT_A_TIME`` entries at most.  Members fetch a larger one."""
_SAVE_AFTER: Final = 1.0
"""Seconds after a change until the copy on disk is written."""
_GOODBYE: Final = 1.0
_KNOWN_WITHIN: Final = 2.0
"""Seconds within which a member that compares has to be known as one here."""
_LOGGED: Final = 64
"""Members whose refused messages are logged, at most."""
_ALLOWANCE: Final = 3
"""Times its bound that the document of another member may have: twice, and what it has written itself."""

_SYNC: Final = "sync"
_REACHED: Final = "reached"


@final
class StateStatistics(Statistics, frozen=True, kw_only=True):
    """Counters of a document at one member."""

    keys: int
    """Values, without those in its maps."""
    bytes: int
    """Size of the document, in bytes: names, values, and 128 for each entry."""
    writers: int
    """Numbers of writers that have been used; at most 1,024."""
    edits: int
    """Edits sent to the other members; what is written between two waits of the program is one."""
    received: int
    """Edits of others that came."""
    early: int
    """Edits that built on what had not come, so that they were fetched with it."""
    compared: int
    """Comparisons with other members that this one has begun and finished."""
    uncompared: int
    """Comparisons that failed; they are begun again."""
    evicted: int
    """Entries removed here because the document had more than twice its bytes."""
    unsaved: int
    """Attempts to write the copy on disk that failed."""
    refused: Mapping[str, int]
    """Messages that were refused, by reason: ``malformed``, ``stranger``."""


_COUNTED: Final = ("edits", "received", "early", "compared", "uncompared", "unsaved")


@final
class DocumentSettings(NamedTuple):
    """Settings of a document; see ``Node.state``."""

    max_bytes: int
    path: Path | None
    allow: frozenset[str]


class DocumentNode(Protocol):
    """The node that a document is open on.  Its methods do not block."""

    @property
    def random(self) -> Random:
        """Return the source of the numbers of writers, and of the members to compare with."""
        ...

    def wall_time(self) -> float:
        """Return seconds since 1970."""
        ...

    def check_open(self) -> None:
        """Raise where nothing can be read or written any more, as the node is closed."""
        ...


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
        settings: DocumentSettings,
        node: DocumentNode,
    ) -> None:
        self.name: Final = members.cluster
        """The cluster whose document this is."""
        self._members = members
        self._node = node
        self._random = node.random
        self._max_bytes, self._path, self._allow = settings
        self._document = _OwnDocument(self)
        replica = Replica(self._document, node.random, settings.max_bytes)
        super().__init__(replica, "")
        self._changes = Changes(replica)
        self._claims: dict[int, tuple[int, list[NodeId]]] = {}
        """Generation of each number, and members that use it, some of them, as they or others have reported."""
        self._rivals: set[NodeId] = set()
        """Members for which this one has left its number: it leaves no other for them."""
        self._edited = Wakeup()
        self._changed = trio.lowlevel.ParkingLot()
        self._unsaved = trio.Event()
        self._saving = trio.Lock()
        """So that the copy on disk is never one that was begun before it."""
        self._is_unsaved = False
        """True if the last attempt to save has failed."""
        self._wanted: dict[NodeId, None] = {}
        """Members that have something that is missing here."""
        self._wants = Wakeup()
        self._asked: set[NodeId] = set()
        """Members that this one compares with now, each once at a time."""
        self._failing: set[NodeId] = set()
        """Members with which the last comparison failed."""
        self._elsewhere: set[NodeId] = set()
        """Members that serve something else under the name."""
        self._progress = Wakeup()
        self._caught_up = trio.Event()
        """Set once this member has the document of one that had caught up, or all present ones began together."""
        self._behind: set[NodeId] = set()
        """Members that had not caught up themselves when they gave what they have."""
        self._merging = trio.Lock()
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
        self._node.check_open()
        return StateWatch(pattern, self._changes)

    @checkpointed
    async def settled(self, members: int | None = None, timeout: float = 5.0) -> None:
        """Wait until members have everything that this one has now.

        Args:
            members: how many, this one included; None: all that are there now, but for those that leave meanwhile.
            timeout: seconds.

        Raises:
            RequestTimeout: they do not within that time.
            ConfigError: an argument is none that can be waited for.
            trio.ClosedResourceError: the block of the document or of its node was left.

        Cancelling it leaves nothing behind.
        """
        self._node.check_open()
        if members is not None and (as_whole(members) or 0) < 1:
            raise ConfigError(f"members is {shown(members)}: use a whole number above 0, or None")
        if not as_float(timeout) > 0:
            raise ConfigError(f"timeout is {shown(timeout)}: use seconds above 0")
        own = self._members.own
        asked = frozenset(self._members.others())
        needed = members or len(asked) + 1
        settled: set[NodeId] = set()
        deadline = trio.current_time() + as_float(timeout)
        with trio.move_on_at(deadline):
            while True:
                self._document.check_open()
                settled.add(own)
                hidden = self._replica.hidden
                present = {own, *self._members.others()}
                wanted = asked & present | {own} if members is None else present
                needed = members or len(wanted)
                if 1 < needed <= len(present) and not self._replica.is_rewriting:
                    settled |= await self._ask_reached(time_left(deadline), needed)
                if self._replica.hidden != hidden:  # another one has used the number: it is written anew
                    settled.clear()
                elif len(settled if members else settled & wanted) >= needed:
                    return
                else:  # a member refused, for it does not know of this one yet, or was lost
                    with trio.move_on_after(_PATIENCE):
                        await self._members.wait_news()
        raise RequestTimeout(
            f"{len(settled)} of {needed} members of {self.name!r} have what this one has written after "
            f"{as_float(timeout):g} s"
        )

    async def _ask_reached(self, timeout: float, count: int) -> set[NodeId]:
        """Ask all members for an answer when they have what this one has; return those that do.

        Counts of writes say nothing where two have used one number.  So those whose document is different compare with
        this one before they answer, and this one with them.
        """
        await in_steps(self._replica.refresh())
        question = encode((self._replica.vector, self._replica.digest()))
        reached: set[NodeId] = set()

        async def compare(member: NodeId) -> None:
            if await self._compare_now(member):
                reached.add(member)

        with suppress(NoSuchCluster):
            async with (
                self._members.survey(_REACHED, question, timeout=timeout, count=count) as answers,
                trio.open_nursery() as nursery,
            ):
                async for answer in answers:
                    if answer.payload is True:
                        reached.add(answer.member)
                    else:
                        nursery.start_soon(compare, answer.member)
        return reached

    def statistics(self) -> StateStatistics:
        """Return a snapshot of the counters."""
        return StateStatistics(
            keys=len(self),
            bytes=self._replica.size,
            writers=len(self._replica.vector),
            evicted=self._replica.evicted,
            refused=dict(self._refused),
            **{name: self._counts[name] for name in _COUNTED},
        )

    # -- running --------------------------------------------------------------------------------------------

    def _service(self) -> Service:
        """Return the service that answers the other members."""
        service = Service(self.name)
        service.broadcast(self._receive_edit)
        service.request(_REACHED)(self._reached)
        service.tunnel(_SYNC)(self._serve_sync)
        serve_programs(service, self._replica, self._check_program, self._check_allowed, self.watch)
        return service

    def _end_watches(self) -> None:
        """End all watches: nothing changes any more."""
        self._changes.ended = True
        self._changes.wake()

    @asynccontextmanager
    async def _running(self, timeout: float) -> AsyncIterator[None]:
        """Keep the document equal to those of the others; the block begins when it has what one of them has.

        Raises:
            RequestTimeout: there are members, and none of them gives it.
            ConfigError: they serve something else.
        """
        async with open_background() as nursery:
            nursery.start_soon(self._send_edits)
            nursery.start_soon(self._fetch_missing)
            if self._path is not None:
                nursery.start_soon(self._save_changes, self._path)
            try:
                await self._catch_up(timeout)
                nursery.start_soon(self._compare_now_and_then)
                yield
            finally:
                self._closed = True
                self._caught_up.set()
                self._end_watches()
                self._changed.unpark_all()
                with trio.CancelScope(shield=True):
                    with trio.move_on_after(_GOODBYE):
                        async with self._merging:  # which may find what is to be written anew
                            pass
                        while self._replica.is_rewriting:
                            await self._changed.park()
                    with trio.move_on_after(_GOODBYE), suppress(IrisError):
                        if self._members.others() and self._replica.writer >= 0:
                            # what may have reached nobody is fetched by somebody
                            await self._ask_reached(_GOODBYE, 2)
                    if self._path is not None:
                        await self._save(self._path, ends=True)

    async def _load(self) -> None:
        """Begin with the copy on disk; raise ConfigError if it cannot be read."""
        snapshot = None if self._path is None else await run_in_thread(load_copy, self._path)
        if snapshot is not None:
            await self._merge(snapshot)

    async def _catch_up(self, timeout: float) -> None:
        """Compare with members until one has given the document that has caught up itself, or all began together.

        One is asked first, and more at a time for each that had not caught up.  One that stands still is waited for no
        longer than until another one is asked beside it.
        """
        patience, asks, known = _ANOTHER, True, set[NodeId]()
        with trio.move_on_after(timeout):
            while not self._caught_up.is_set():
                others = self._members.others()
                if others and self._elsewhere.issuperset(others):
                    raise ConfigError(f"{self.name!r} serves something else: give the document a name of its own")
                if not known.issubset(others):  # who has left may have given the document to one that was asked before
                    self._behind.clear()
                known = set(others)
                if known <= self._behind | self._elsewhere:
                    self._caught_up.set()
                    break
                free = [one for one in others if one not in self._elsewhere | self._asked | self._behind]
                if asks or not self._asked:
                    for member in self._random.sample(free, min(len(free), 1 + len(self._behind))):
                        self._want(member)
                with trio.move_on_after(patience) as waiting:
                    await self._progress.wait()
                asks = waiting.cancelled_caught
                patience *= 1 + asks
                if asks and not free:
                    self._behind.clear()
            return
        raise RequestTimeout(f"no member of {self.name!r} gives the document within {timeout:g} s")

    # -- what the replica notes -----------------------------------------------------------------------------

    def _note_news(self) -> None:
        self._changed.unpark_all()
        self._unsaved.set()

    def _claimed(self) -> Collection[int]:
        """Return the numbers of writers that other members use."""
        members = set(self._members.all())
        self._rivals &= members
        present = {
            number: (known, [node for node in nodes if node in members])
            for number, (known, nodes) in self._claims.items()
            if known == generation(self._replica.vector, number)
        }
        self._claims = {number: claim for number, claim in present.items() if claim[1]}
        return self._claims.keys()

    def _all_claims(self) -> list[Claim]:
        """Return who uses which numbers, this member as well."""
        own = [(self._replica.writer, self._members.own)] if self._replica.writer >= 0 else []
        return own + [(number, node) for number in self._claimed() for node in self._claims[number][1]]

    def _note_claims(self, claims: Iterable[Claim], vector: Vector) -> set[int]:
        """Note who uses which numbers, by who counts so many writes; return this writer's own if another uses it."""
        members, clashes = set(self._members.others()), set[int]()
        for number, node in claims:
            since = generation(vector, number)
            if node in members and since >= generation(self._replica.vector, number):
                known, nodes = self._claims.get(number, (since, []))
                if known < since:
                    known, nodes = since, []
                self._claims[number] = known, nodes
                if known == since and node not in nodes and len(nodes) < USERS:
                    nodes.append(node)
                if number == self._replica.writer and node not in self._rivals:
                    self._rivals.add(node)
                    clashes.add(number)
        return clashes

    # -- edits ----------------------------------------------------------------------------------------------

    async def _send_edits(self) -> None:
        while True:
            await self._edited.wait()
            for edit in self._replica.pop_edits():
                if not self._members.others():
                    continue
                self._counts["edits"] += 1
                data = b"" if max(len(edit.added), len(edit.removed)) > AT_A_TIME else encode(edit)
                if not 0 < len(data) <= _BROADCAST:
                    data = encode(Edit(edit.writer, 0, 0, dict(self._replica.vector), [], []))
                with suppress(DeliveryError):  # members get it when they compare
                    await self._members.broadcast(data)

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
            self._note_claims([(edit.writer, sender.node)], {edit.writer: edit.first})  # which it may leave by this one
            self._note_news()

    # -- anti-entropy ---------------------------------------------------------------------------------------

    def _want(self, member: NodeId) -> None:
        self._wanted[member] = None
        self._wants.wake()

    async def _compare_now_and_then(self) -> None:
        while True:
            await trio.sleep(_INTERVAL * self._random.uniform(0.75, 1.25))
            others = self._members.others()
            self._failing.intersection_update(others)
            if others:
                self._want(self._random.choice(others))

    async def _fetch_missing(self) -> None:
        """Compare with the members that are wanted, with several at a time: one that stalls holds up no other."""
        async with open_background() as nursery:
            while True:
                await self._wants.wait()
                for member in [member for member in self._wanted if member not in self._asked]:
                    self._asked.add(member)
                    nursery.start_soon(self._fetch_from, member)

    async def _fetch_from(self, member: NodeId) -> None:
        try:
            async with self._fetching:
                while member in self._wanted:
                    del self._wanted[member]
                    if self._members.has(member):
                        await self._compare(member)
        finally:
            self._asked.discard(member)
            self._progress.wake()
            self._changed.unpark_all()

    async def _compare_now(self, member: NodeId) -> bool:
        """Compare with a member by a comparison that begins now or later; tell whether it succeeded."""
        self._want(member)
        while (member in self._wanted or member in self._asked) and not self._closed:
            await self._changed.park()
        return self._members.has(member) and member not in self._failing and not self._closed

    async def _compare(self, member: NodeId) -> None:
        """Get what one member has and this one lacks.  If that fails, the document is as it was."""
        outcome = "uncompared"
        self._failing.add(member)
        try:
            with trio.move_on_after(_SYNC_TIMEOUT):
                async with self._members.open_tunnel(member, _SYNC, _SYNC_TIMEOUT) as tunnel:
                    most = _ALLOWANCE * self._max_bytes
                    caught_up, snapshot = await pull(tunnel, self._replica, most, self._progress.wake)
                if snapshot is not None:
                    await self._merge(snapshot)
                if caught_up:
                    self._caught_up.set()
                elif not self._caught_up.is_set():
                    self._behind.add(member)
                outcome = "compared"
                self._failing.discard(member)
        except RemoteProtocolError as error:
            self._refuse(Sender(self.name, member), "malformed", str(error))
        except IrisError as error:  # it leaves, or is lost: then it is no member for long
            if isinstance(error, RemoteError) and error.code == "no_such_operation":
                self._elsewhere.add(member)
            with trio.move_on_after(_PATIENCE):
                await self._members.wait_news()
        finally:
            self._counts[outcome] += 1

    async def _merge(self, snapshot: Snapshot) -> None:
        """Merge what another replica has: in steps, of which none is left out."""
        with trio.CancelScope(shield=True):
            async with self._merging:
                users = self._note_claims(snapshot.header.claimed, snapshot.header.vector)
                await in_steps(snapshot.merge(self._replica, users))
        self._note_news()

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
                        if not self._caught_up.is_set():
                            async with self._merging:  # what has come counts: its giver may be gone
                                pass
                        caught_up = self._caught_up.is_set()
                        vector, writer = await serve(tunnel, self._replica, self._all_claims, caught_up=caught_up)
                        if writer >= 0 and self._note_claims([(writer, node)], vector):
                            self._replica.leave(writer)
                        if not self._replica.covers(vector):
                            self._want(node)
            except RemoteProtocolError as error:
                self._refuse(tunnel.sender, "malformed", str(error))
                raise RemoteError("malformed", str(error)) from None
            finally:
                if self._served[node] is scope:
                    del self._served[node]

    async def _reached(self, request: Request) -> bool:
        """Return when everything is here that another one has; False if that one has to compare, too."""
        await self._check_member(request.sender)
        node = request.sender.node
        try:
            vector, digest = read_untrusted(request.payload, tuple[Vector, bytes], "a question")
        except RemoteProtocolError as error:
            self._refuse(request.sender, "malformed", str(error))
            raise RemoteError("malformed", str(error)) from None
        with trio.move_on_after(_PATIENCE) as waiting:
            await self._wait_covered(vector)
        if waiting.cancelled_caught:
            self._want(node)
            await self._wait_covered(vector)
        if node == self._members.own:
            return True
        await in_steps(self._replica.refresh())
        if digest == self._replica.digest():
            return True
        if not await self._compare_now(node):
            raise RemoteError("uncompared", f"this member of {self.name!r} could not compare")
        return False

    async def _wait_covered(self, vector: Mapping[int, int]) -> None:
        while not self._replica.covers(vector):
            if self._closed:
                raise RemoteError("leaving", f"this member leaves {self.name!r}")
            await self._changed.park()

    # -- who may --------------------------------------------------------------------------------------------

    async def _check_member(self, sender: Sender) -> None:
        """Raise RemoteError unless a node is a member; one that has just become one is known shortly."""
        with trio.move_on_after(_KNOWN_WITHIN):
            while not self._members.has(sender.node):
                await self._members.wait_news()
            return
        self._refuse(sender, "stranger", "it is no member")
        raise RemoteError(
            "not_a_member", f"node {sender.node} of cluster {sender.cluster!r} is no member of {self.name!r}"
        )

    async def _check_program(self, sender: Sender) -> None:
        """Make sure that a node may use the document, and wait until this member has it.

        Raises:
            RemoteError: it is neither a member nor allowed; or this member leaves.
        """
        self._check_allowed(sender)
        if not self._caught_up.is_set():
            await self._caught_up.wait()
        if self._closed:
            raise RemoteError("leaving", f"this member leaves {self.name!r}")

    def _check_allowed(self, sender: Sender) -> None:
        """Make sure that a node is a member, or allowed.

        Raises:
            RemoteError: it is neither.
        """
        if sender.cluster not in self._allow and not self._members.has(sender.node):
            self._refuse(sender, "stranger", "it is neither a member nor allowed")
            raise RemoteError("not_allowed", f"nodes of cluster {sender.cluster!r} may not use {self.name!r}")

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

    # -- copy on disk ---------------------------------------------------------------------------------------

    async def _save_changes(self, path: Path) -> None:
        while True:
            await self._unsaved.wait()
            await trio.sleep(_SAVE_AFTER)
            self._unsaved = trio.Event()
            if not await self._save(path):
                self._unsaved.set()

    async def _save(self, path: Path, *, ends: bool = False) -> bool:
        try:
            async with self._saving:
                vector, entries = dict(self._replica.vector), self._replica.all_entries()
                await run_in_thread(partial(save_copy, path, vector, entries), else_here=ends)
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


@final
class _OwnDocument:
    """A document, as its replica sees it.  See ``Document``."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    def check_open(self) -> None:
        """Raise ClosedResourceError once the block of the document or of its node was left."""
        state = self._state
        if state._closed:
            raise trio.ClosedResourceError(
                f"the block of the document {state.name!r} was left: nobody gets what is written"
            )
        state._node.check_open()

    def note_edit(self) -> None:
        """Send what was written when the program waits next."""
        self._state._edited.wake()
        self._state._note_news()

    def note_changes(self, changed: list[Entry], came: set[int]) -> None:
        """Notify the watches."""
        self._state._changes.note(changed, came)

    def wall_time(self) -> float:
        """See ``Document.wall_time``."""
        return self._state._node.wall_time()

    def claimed_writers(self) -> Collection[int]:
        """See ``Document.claimed_writers``."""
        return self._state._claimed()
