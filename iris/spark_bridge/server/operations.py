"""Operations of a bridge: the requests that its service answers, and the tunnels for chunks and staged parts.

========= ================================== =========================================================
operation payload                            reply
========= ================================== =========================================================
shards    None                               {shards: a list of id, number, epoch, address, earliest, next, size,
                                             timestamp, gap, of: number of all shards, 0 if members do not share,
                                             term: of the primary;
                                             known: pairs of the number of a shard that the bridge is known to have,
                                             and the cluster at which it was found last}
offsets   {known: {id: offset}, timeout: s,  {id: [earliest, next, gap, first, count, upto]} of these shards, none being
          topics: patterns, regex: text or   all: the fields of ``News``; when a wanted event is behind ``known`` or
          None, limit: number or None}       time is over
gaps      {shard: id, start: offset,         a list of the gaps in the range, ordered, 256 at most: the fields of
          end: offset, topics: patterns,     ``Gap``; those of topics that the reader may not subscribe to are left
          skip: number}                      out, and so many of the first
damage    {shard: id, start: offset,         {count: of the wanted events in the range that are known to be damaged,
          end: offset, topics: patterns,     places: a list of offset, end, reason: of the first 256 stretches}
          regex: text or None}
times     {timestamp: microseconds}          {id: first offset that is not older}
locate    {shard: id, start: offset,         the fields of ``FileRange``: the file in which the wanted events of the
          end: offset, machine: text,        range begin; None if the reader is on another machine
          topics: patterns, regex: ...}
pin       {group: name, start: {id: offset}} {start: {...}, offsets: {...}}: the group's cursor, made if there is none
move      {group: name, offsets: {...}}      None
cursors   None                               a list of cursors: group, owner ("" if none), start, offsets, timestamp
drop      {group: name}, {query: name}       whether that was known
          or {shard: number}
transfer  {group: name} or {query: name},    the same; it belongs to that cluster from now on
          and {to: cluster}
trim      {shard: id, before: offset}        number of events removed
status    None                               the counters of ``BridgeStatistics``
copies    None                               a list of the copies: the fields of ``CopyStatus``
tier      None                               a list of the shards that have a tier: the fields of ``TierStatus``
commit    {query, batch: number,             number of rows, or None if the batch was committed before
          parts: [[partition, attempt], ...]} the third of a part, if it has one, is its stream: then it is not staged
abort     {query, batch: number}             None
queue     {group: "queue/NAME"}              the fields of ``QueueStatus``
peek      {group: "queue/NAME", most: n}     a list of jobs: place, state, attempts, error, key, headers, value and more
purge     {group: "queue/NAME"}              number of jobs that are forgotten
========= ================================== =========================================================

Tunnel ``read``: the reader sends {shard: id, start: offset, end: offset, topics: patterns, regex: text or None,
pass_damage: whether it goes on without what is damaged}.  The member sends bytes that are, put together, whole frames
(``iris.spark_bridge.log.chunk``) which hold at least the range, and then the end; or {error: code, message: text}.
Events of topics that the reader does not want may be left out of the frames; they are if the reader may not subscribe
to all topics.

Wanted are topics that match one of the patterns ``topics``, none being all, or the regular expression ``regex``, as RE2
has it, which only readers of all topics may give.

Tunnel ``stage``: the writer sends {query, batch, partition, attempt}, then an Arrow IPC stream of
``iris.spark_bridge.events.schema.SINK_SCHEMA`` as bytes, and the end; the answer is the number of bytes or an error as
above.

Tunnel ``take``: see ``iris.spark_bridge.queues.messages``.  Tunnel ``consume``: see
``iris.spark_bridge.consumers.consumers``.

Who may call which is in ``iris.spark_bridge.server.permissions``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast, final
from weakref import WeakValueDictionary

import trio

from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import IrisError, RemoteError, TunnelBroken
from iris.kernel.names import account_of, is_node_id
from iris.kernel.tasks import run_in_thread
from iris.patterns.messages import Request, Sender
from iris.patterns.pubsub.interest import MAX_SHARDS
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel
from iris.spark_bridge.consumers import Consumers
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.gaps import GAPS_AT_ONCE
from iris.spark_bridge.log import MAX_REGEX, QUERY, ShardState, TopicFilter, machine
from iris.spark_bridge.queues import Queues
from iris.spark_bridge.server.growth import read_windows
from iris.spark_bridge.server.member import BridgeMember
from iris.spark_bridge.server.permissions import Kind, Permission, Permissions, check_owner, patterns_untrusted
from iris.spark_bridge.server.sink_commits import BatchCommitter
from iris.spark_bridge.staging import StagedPart

MAX_POLL: Final = 10.0
"""Seconds that a question for offsets may wait for news."""

_FILTERS: Final = 256
"""Most cached filters: sets of topics that readers want, each with the verdicts on topics."""

_MATCHED: Final = 500_000
"""Most cached verdicts of all filters; beyond that the least recently used filters are dropped."""

_READ_BYTES: Final = MIB
"""Size of a read from the disk for each reader, in bytes."""

_PARTS: Final = "parts are pairs of partition and attempt, or these two and the rows"

_LOCATED_BYTES: Final = 16 * MIB
"""Most of a file that one answer names, in bytes.  Another question takes 1 ms, beside 10 ms of reading so much."""

_PIECE: Final = 256 * KIB
"""Size of one message in a reader's tunnel, in bytes: one frame."""

_COPIED: Final = frozenset({"pin", "commit", "drop", "transfer"})
"""Operations that are answered once enough copies have their changes."""

_COPYING: Final = 4.0
"""Seconds that this may take; then the caller tries again."""

RequestHandler = Callable[[Sender, Any], Awaitable[object]]
"""Handler, called with the sender and the payload; returns the reply."""

MemberHandler = Callable[[Request], Awaitable[object]]
"""Answers a member of the cluster that the payload names."""

TunnelHandler = Callable[[Tunnel, Mapping[str, object], Callable[[], None]], Awaitable[None]]
"""Takes the tunnel of a caller that may open it, its first message, and what raises NotAllowed when it may no more."""


@final
class Operations:
    """The handlers of one member.

    Args:
        member: stores and reads.
        intake: commits what Spark writes.
        queues: assigns jobs.
        kept: answers the members of clusters for which the bridge keeps something, by operation.
        permissions: rights to call each operation.
        config: limits of what one cluster may have, and do at a time.
        address: name of the cluster at which this member's shards are found.
    """

    def __init__(
        self,
        member: BridgeMember,
        intake: BatchCommitter,
        *,
        queues: Queues,
        kept: Mapping[str, MemberHandler],
        permissions: Permissions,
        config: Config,
        address: str,
    ) -> None:
        self._member = member
        self._intake = intake
        self._queues = queues
        self._kept = kept
        self._permissions = permissions
        self._config = config
        self._address = address
        self._at_a_time = {
            "read": config.bridge_reads_per_owner,
            "stage": config.bridge_stagings_per_owner,
            "take": config.bridge_workers_per_owner,
            "consume": config.bridge_workers_per_owner,
        }
        self._turns: WeakValueDictionary[tuple[str, str], trio.Semaphore] = WeakValueDictionary()
        """Limits by tunnel's operation and cluster, as long as a tunnel is open: each needs memory or a file."""
        self._filters: dict[tuple[tuple[str, ...], str | None], TopicFilter] = {}
        """Filters of readers, the most recently used last."""
        self._polls: Counter[str] = Counter()
        """Number of requests that wait for news, by cluster."""

    def service(self, cluster: str) -> Service:
        """Return the service for one of the clusters that the member joins."""
        requests: Mapping[str, RequestHandler] = {
            "shards": self._shards,
            "offsets": self._offsets,
            "gaps": self._gaps,
            "damage": self._damage,
            "times": self._times,
            "locate": self._locate,
            "pin": self._pin,
            "move": self._move,
            "cursors": self._cursors,
            "drop": self._drop,
            "transfer": self._transfer,
            "trim": self._trim,
            "status": self._status,
            "copies": self._copies,
            "tier": self._tier,
            "commit": self._commit,
            "abort": self._abort,
            "queue": self._queues.status,
            "peek": self._queues.peek,
            "purge": self._queues.purge,
            "divide": self._divide,
            "windows": self._windows,
            "position": self._position,
        }
        tunnels: Mapping[str, TunnelHandler] = {
            "read": self._read,
            "stage": self._stage,
            "take": self._queues.serve,
            "consume": Consumers(self._member).consume,
        }
        service = Service(cluster)
        for operation, handler in requests.items():
            service.request(operation)(partial(self._answer, operation, partial(_unpacked, handler)))
        for operation, answer in self._kept.items():
            service.request(operation)(partial(self._answer, operation, answer))
        for operation, taker in tunnels.items():
            service.tunnel(operation)(partial(self._serve, operation, taker))
        return service

    async def _answer(self, operation: str, handler: MemberHandler, request: Request) -> object:
        try:
            permission = self._permissions.check(operation, request.sender)
            await self._check_named(permission, request.sender, request.payload)
            answer = await handler(request)
            if operation in _COPIED:
                await self._member.copies.wait_copied(_COPYING)
            return answer
        except (RemoteError, LogDamaged):
            raise
        except IrisError as error:
            # An answer: nothing has gone wrong here, so nothing is logged as if it had.
            raise RemoteError(type(error).__name__, str(error)) from None

    async def _serve(self, operation: str, handler: TunnelHandler, tunnel: Tunnel) -> None:
        async with _answering(tunnel):
            permission = self._permissions.check(operation, tunnel.sender)
            account = account_of(tunnel.sender.cluster)
            turns = self._turns.setdefault((operation, account), trio.Semaphore(self._at_a_time[operation]))
            async with turns:
                try:
                    fields = _fields(await tunnel.receive())
                except trio.EndOfChannel:
                    raise RemoteError("bad_request", "the tunnel ended before it said what it is for") from None
                await self._check_named(permission, tunnel.sender, fields)

                def look_again() -> None:
                    # What it may can change as long as the tunnel is open.
                    self._permissions.check(operation, tunnel.sender)
                    self._permissions.check_named(permission, tunnel.sender, fields)
                    if permission.owns is not None:
                        name = _name(fields, permission.owns)
                        owner = self._member.store.owner(permission.owns, name)  # one page of memory: 10 us
                        if owner is not None:
                            check_owner(permission.owns, name, owner=owner, caller=tunnel.sender.cluster)

                await handler(tunnel, fields, look_again)

    async def _check_named(self, permission: Permission, sender: Sender, payload: object) -> None:
        """Check the sender's rights to what it names.  A group or query that had no owner belongs to it from now on."""
        self._permissions.check_named(permission, sender, payload)
        kind = permission.owns
        if kind is None:
            return
        name = _name(_fields(payload), kind)
        config = self._config
        if kind == "group":
            most, most_of_owner = config.bridge_groups, config.bridge_groups_per_owner
        else:
            most, most_of_owner = config.bridge_queries, config.bridge_queries_per_owner
        claim = partial(
            self._member.store.claim,
            kind,
            name,
            sender.cluster,
            most=most,
            most_of_owner=most_of_owner,
            now=self._member.now(),
        )
        check_owner(kind, name, owner=await run_in_thread(claim), caller=sender.cluster)

    # -- requests -------------------------------------------------------------------------------------------

    async def _shards(self, _sender: Sender, _payload: object) -> dict[str, Any]:
        shards = [
            {
                **dataclasses.asdict(state),
                "id": state.id,
                "gap": self._member.store.last_loss(state),
                "address": self._address,
                "of": self._member.of or 0,
                "term": self._member.copies.term,
                **self._divided(state),
            }
            for state in self._member.states.values()
        ]
        return {"shards": shards, "known": [list(known) for known in self._member.known.items()]}

    def _divided(self, state: ShardState) -> dict[str, Any]:
        division = self._member.division
        if division is None:
            return {}
        marks = [[of, offsets[state.number]] for of, offsets in division.marks.items() if state.number in offsets]
        return {"grown": list(division.grown), "marks": marks, "after": dict(division.after)}

    async def _divide(self, _sender: Sender, payload: object) -> None:
        of = _number(_fields(payload), "of")
        if not 0 < of <= MAX_SHARDS:
            raise RemoteError("bad_request", f"of is {of}: use 1 to {MAX_SHARDS}")
        await self._member.divide(of)

    async def _windows(self, _sender: Sender, payload: object) -> list[list[Any]]:
        begin = _text(_fields(payload), "begin")
        if not is_node_id(begin):
            raise RemoteError("bad_request", f"begin is {begin!r}: use the id of a node")
        return await run_in_thread(read_windows, self._member.store, begin)

    async def _position(self, _sender: Sender, payload: object) -> list[int] | None:
        fields = _fields(payload)
        group, shard = _text(fields, "group"), self._state(_text(fields, "shard")).id
        for cursor in await run_in_thread(self._member.store.cursors):
            if cursor.group == group and shard in cursor.offsets:
                return [cursor.start.get(shard, 0), cursor.offsets[shard]]
        return None

    async def _offsets(self, sender: Sender, payload: object) -> dict[str, list[int]]:
        fields = _fields(payload)
        timeout = fields.get("timeout")
        if not isinstance(timeout, int | float) or not 0 <= timeout <= MAX_POLL:
            raise RemoteError("bad_request", f"timeout is {timeout!r}: use 0 to {MAX_POLL:g} seconds")
        known = _offsets(fields, "known")
        limit = None if fields.get("limit") is None else _number(fields, "limit")
        if limit == 0:
            raise RemoteError("bad_request", "limit is 0: use a whole number above it")
        wanted = self._wanted(fields)
        account = account_of(sender.cluster)
        if self._polls[account] >= self._config.bridge_polls_per_owner:
            timeout = 0
        self._polls[account] += 1
        try:
            found = await self._member.wait_news(known, timeout, wanted, limit)
        finally:
            self._polls[account] -= 1
            if not self._polls[account]:
                del self._polls[account]
        states = self._member.states
        return {
            shard: [
                *(news.earliest, news.next, self._member.store.last_loss(states[shard])),
                *(news.first, news.count, news.upto),
            ]
            for shard, news in found.items()
            if shard in states
        }

    def _wanted(self, fields: Mapping[str, object]) -> TopicFilter:
        """Return a filter of the topics that a reader wants."""
        topics, regex = patterns_untrusted({"topics": [], **fields}), fields.get("regex")
        if regex is not None and (not isinstance(regex, str) or topics):
            raise RemoteError("bad_request", "regex is a text in the place of topics")
        wanted = self._filter(tuple(topics), regex)
        if not wanted.is_linear:
            raise RemoteError("bad_request", f"regex is none that RE2 knows, of {MAX_REGEX} bytes at most")
        return wanted

    def _filter(self, topics: tuple[str, ...], regex: str | None) -> TopicFilter:
        found = self._filters.pop((topics, regex), None) or TopicFilter(topics, regex)
        self._filters[topics, regex] = found
        matched = sum(other.remembered for other in self._filters.values())
        while len(self._filters) > 1 and (len(self._filters) > _FILTERS or matched > _MATCHED):
            oldest = next(iter(self._filters))
            matched -= self._filters.pop(oldest).remembered
        return found

    async def _gaps(self, sender: Sender, payload: object) -> list[dict[str, Any]]:
        fields = _fields(payload)
        state = self._state(_text(fields, "shard"))
        start, end, skip = _number(fields, "start"), _number(fields, "end"), _number(fields, "skip")
        wanted = TopicFilter(patterns_untrusted(fields))
        found = [
            gap
            for gap in self._member.store.gaps()
            if gap.shard == state.number
            and gap.spans(start, end)
            and wanted.wants(gap.topic)
            and self._permissions.may_read(sender, gap.topic)
        ]
        return [dataclasses.asdict(gap) for gap in found[skip : skip + GAPS_AT_ONCE]]

    async def _damage(self, _sender: Sender, payload: object) -> dict[str, Any]:
        fields = _fields(payload)
        state = self._state(_text(fields, "shard"))
        start, end = _number(fields, "start"), _number(fields, "end")
        count = partial(self._member.store.damage_between, state.number, start, end, self._wanted(fields))
        found = await run_in_thread(count)
        return {
            "count": sum(count for _, count in found),
            "places": [[damage.offset, damage.end, damage.reason] for damage, _ in found[:GAPS_AT_ONCE]],
        }

    async def _times(self, _sender: Sender, payload: object) -> dict[str, int]:
        timestamp = _number(_fields(payload), "timestamp")
        store = self._member.store
        return {
            state.id: min(await run_in_thread(store.offset_at, state.number, timestamp), state.next)
            for state in self._member.states.values()
        }

    async def _pin(self, _sender: Sender, payload: object) -> dict[str, dict[str, int]]:
        fields = _fields(payload)
        start = self._own_offsets(fields, "start")
        pin = partial(self._member.store.pin_cursor, _name(fields, "group"), start, now=self._member.now())
        cursor = await run_in_thread(pin)
        return {"start": dict(cursor.start), "offsets": dict(cursor.offsets)}

    async def _move(self, _sender: Sender, payload: object) -> None:
        fields = _fields(payload)
        offsets = self._own_offsets(fields, "offsets")
        move = partial(self._member.store.move_cursor, _name(fields, "group"), offsets, now=self._member.now())
        await run_in_thread(move)

    def _own_offsets(self, fields: Mapping[str, object], name: str) -> dict[str, int]:
        """Return offsets of this member's shards; it keeps no others for a group, however many are given."""
        states = self._member.states
        return {shard: offset for shard, offset in _offsets(fields, name).items() if shard in states}

    async def _cursors(self, _sender: Sender, _payload: object) -> list[dict[str, Any]]:
        owners = await run_in_thread(self._member.store.owners, "group")
        return [
            {
                "group": cursor.group,
                "owner": owners.get(cursor.group, ""),
                "start": dict(cursor.start),
                "offsets": dict(cursor.offsets),
                "timestamp": cursor.timestamp,
            }
            for cursor in await run_in_thread(self._member.store.cursors)
        ]

    async def _drop(self, _sender: Sender, payload: object) -> bool:
        fields = _fields(payload)
        if "shard" in fields:
            return await self._member.forget_shard(_number(fields, "shard"))
        kind, name = _kind_and_name(fields)
        if kind == "group":
            dropped = await run_in_thread(self._member.store.drop_cursor, name)
            if self._member.parents is not None:
                self._member.parents.forget(name)
            return dropped
        await self._intake.discard(name)
        return await run_in_thread(self._member.store.drop_query, name)

    async def _transfer(self, _sender: Sender, payload: object) -> bool:
        fields = _fields(payload)
        kind, name = _kind_and_name(fields)
        transfer = partial(self._member.store.transfer, kind, name, _text(fields, "to"), now=self._member.now())
        return await run_in_thread(transfer)

    async def _trim(self, _sender: Sender, payload: object) -> int:
        fields = _fields(payload)
        state = self._state(_text(fields, "shard"))
        before = _number(fields, "before")
        if before > state.next:
            raise RemoteError("bad_request", f"before is {before}: shard {state.id} ends at {state.next}")
        trimmed = await run_in_thread(self._member.store.trim, state.number, before)
        self._member.refresh()
        return trimmed

    async def _status(self, _sender: Sender, _payload: object) -> dict[str, int]:
        return dataclasses.asdict(self._member.statistics())

    async def _copies(self, _sender: Sender, _payload: object) -> list[dict[str, Any]]:
        return [dataclasses.asdict(copy) for copy in await self._member.copies.statuses()]

    async def _tier(self, _sender: Sender, _payload: object) -> list[dict[str, Any]]:
        return [dataclasses.asdict(tier) for tier in await self._member.tier_statuses()]

    def _state(self, shard: str) -> ShardState:
        state = self._member.states.get(shard)
        if state is None:
            raise RemoteError("DataLost", f"shard {shard} is not there: the log was wiped or is another one")
        return state

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self, tunnel: Tunnel, fields: Mapping[str, object], look_again: Callable[[], None]) -> None:
        state = self._state(_text(fields, "shard"))
        at, end = _number(fields, "start"), _number(fields, "end")
        _check_end(state, end)
        wanted = self._wanted(fields)
        pass_damage = fields.get("pass_damage") is True

        def read() -> tuple[bytes, int]:
            chunks = self._member.store.read(
                state.number,
                state.epoch,
                at,
                end,
                max_bytes=_READ_BYTES,
                wanted=wanted,
                exact=exact,
                pass_damage=pass_damage,
            )
            return b"".join(chunk.frame for chunk in chunks), chunks[-1].end

        while at < end:
            look_again()
            exact = not self._permissions.may_read_all(tunnel.sender)
            frames, at = await run_in_thread(read)
            for position in range(0, len(frames), _PIECE):
                await tunnel.send(frames[position : position + _PIECE])

    async def _locate(self, sender: Sender, payload: object) -> dict[str, Any] | None:
        if not self._permissions.may_read_all(sender):
            return None  # events of all topics are in one file
        fields = _fields(payload)
        if machine() is None or _text(fields, "machine") != machine():
            return None
        state = self._state(_text(fields, "shard"))
        start, end = _number(fields, "start"), _number(fields, "end")
        _check_end(state, end)
        locate = partial(
            self._member.store.locate,
            state.number,
            state.epoch,
            start,
            end,
            max_bytes=_LOCATED_BYTES,
            wanted=self._wanted(fields),
        )
        try:
            return dataclasses.asdict(await run_in_thread(locate))
        except ValueError as error:
            raise RemoteError("bad_request", str(error)) from None

    # -- writing --------------------------------------------------------------------------------------------

    async def _stage(self, tunnel: Tunnel, fields: Mapping[str, object], _look_again: Callable[[], None]) -> None:
        await tunnel.send(await self._intake.stage(_part(fields), tunnel))

    async def _commit(self, sender: Sender, payload: object) -> int | None:
        writer = self._permissions.writer(sender)
        fields = _fields(payload)
        given = fields.get("parts")
        if not isinstance(given, list):
            raise RemoteError("bad_request", _PARTS)
        parts: list[StagedPart] = []
        carried: dict[StagedPart, bytes] = {}
        for listed in cast("list[object]", given):
            if not isinstance(listed, list) or len(cast("list[object]", listed)) not in (2, 3):
                raise RemoteError("bad_request", _PARTS)
            partition, attempt, *rows = cast("list[object]", listed)
            parts.append(_part({**fields, "partition": partition, "attempt": attempt}))
            for stream in rows:
                if not isinstance(stream, bytes):
                    raise RemoteError("bad_request", _PARTS)
                carried[parts[-1]] = stream
        if len(set(parts)) < len(parts):
            raise RemoteError("bad_request", "a part is listed twice: its rows would be stored twice")
        query, batch = _name(fields, "query"), _number(fields, "batch")
        return await self._intake.commit(query, batch, parts, carried, writer=writer)

    async def _abort(self, _sender: Sender, payload: object) -> None:
        fields = _fields(payload)
        await self._intake.abort(_name(fields, "query"), _number(fields, "batch"))


async def _unpacked(handler: RequestHandler, request: Request) -> object:
    return await handler(request.sender, request.payload)


@asynccontextmanager
async def _answering(tunnel: Tunnel) -> AsyncIterator[None]:
    """Send an error and the end of file to the other end of a tunnel."""
    try:
        yield
    except RemoteError as error:
        await tunnel.send({"error": error.code, "message": error.message})
    except ValueError as error:
        await tunnel.send({"error": "bad_request", "message": str(error)})
    except TunnelBroken:
        raise
    except IrisError as error:
        await tunnel.send({"error": type(error).__name__, "message": str(error)})
    await tunnel.send_eof()


# -- payloads of peers -----------------------------------------------------------------------------------------


def _fields(payload: object) -> Mapping[str, object]:
    if not isinstance(payload, dict):
        raise RemoteError("bad_request", f"the payload is a {type(payload).__name__}: use a dict")
    return cast("dict[str, object]", payload)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value.encode()) <= 256:
        raise RemoteError("bad_request", f"{name} is {value!r}: use 1 to 256 bytes of text")
    return value


def _name(fields: Mapping[str, object], kind: Kind) -> str:
    """Return the name of the group or query that ``fields`` are about.  That of a query is part of paths, too."""
    name = _text(fields, kind)
    if kind == "query" and not QUERY.match(name):
        raise RemoteError("bad_request", f"query is {name!r}: use 1 to 64 letters, digits, '-' and '_'")
    return name


def _kind_and_name(fields: Mapping[str, object]) -> tuple[Kind, str]:
    kind: Kind = "query" if "query" in fields else "group"
    return kind, _name(fields, kind)


def _number(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise RemoteError("bad_request", f"{name} is {value!r}: use a whole number, 0 or more")
    return value


def _offsets(fields: Mapping[str, object], name: str) -> dict[str, int]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise RemoteError("bad_request", f"{name} is {value!r}: use offsets by shard id")
    offsets = cast("dict[str, object]", value)
    return {shard: _number(offsets, shard) for shard in offsets}


def _check_end(state: ShardState, end: int) -> None:
    """Make sure that readers get no events which copies do not have: they are in the log, and may be lost with it."""
    if end > state.next:
        raise RemoteError("bad_request", f"no events up to {end}: shard {state.id} ends at {state.next}")


def _part(fields: Mapping[str, object]) -> StagedPart:
    return StagedPart(
        query=_name(fields, "query"),
        batch=_number(fields, "batch"),
        partition=_number(fields, "partition"),
        attempt=_number(fields, "attempt"),
    )
