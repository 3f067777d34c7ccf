"""What a bridge answers: the operations of its service, and the tunnel through which readers get chunks.

========= ================================== =========================================================
operation payload                            reply
========= ================================== =========================================================
shards    None                               a list of shards: id, number, epoch, address, earliest, next, size,
                                             timestamp; of: number of all shards, 0 if members do not share
offsets   {known: {id: next}, timeout: s}    {id: [earliest, next]}, when it differs from ``known`` or time is over
times     {timestamp: microseconds}          {id: first offset that is not older}
locate    {shard: id, start: offset,         the fields of ``FileRange``: the file in which the range begins; None if
          end: offset, machine: text}        the reader is on another machine
pin       {group: name, start: {id: offset}} {start: {...}, offsets: {...}}: the group's cursor, made if there is none
move      {group: name, offsets: {...}}      None
cursors   None                               a list of cursors: group, start, offsets, timestamp
drop      {group: name}                      whether there was such a group; only for nodes of the bridge's cluster
trim      {shard: id, before: offset}        number of events removed; only for nodes of the bridge's cluster
status    None                               the counters of ``BridgeStatistics``
commit    {query, batch: number,             number of rows, or None if the batch was committed before
          parts: [[partition, attempt], ...]} the third of a part, if it has one, is its stream: then it is not staged
abort     {query, batch: number}             None
========= ================================== =========================================================

Tunnel ``read``: the reader sends {shard: id, start: offset, end: offset}; bytes follow that are, put together, whole
frames (``iris.spark_bridge.frame``) which hold at least the range, and then the end; or {error: code, message: text}.

Tunnel ``stage``: the writer sends {query, batch, partition, attempt}, then an Arrow IPC stream of
``iris.spark_bridge.schema.SINK_SCHEMA`` as bytes, and the end; the answer is the number of bytes or an error as above.

What only reads is for readers; stage, commit and abort are for nodes that may also publish what is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast, final

import trio

from iris.cluster.peer import Peer
from iris.kernel.config import KIB, MIB
from iris.kernel.errors import IrisError, NotAllowed, RemoteError, TunnelBroken
from iris.kernel.ids import NodeId
from iris.patterns.service import Service
from iris.patterns.tunnel import Tunnel
from iris.patterns.values import Request, Sender
from iris.spark_bridge.errors import BridgeError
from iris.spark_bridge.file_range import machine
from iris.spark_bridge.intake import Intake
from iris.spark_bridge.member import BridgeMember
from iris.spark_bridge.staging import StagedPart
from iris.spark_bridge.store import ShardState
from iris.spark_bridge.writers import Writer

MAX_POLL: Final = 10.0
"""Seconds that a question for offsets may wait for news."""

_READ_BYTES: Final = MIB
"""Read from the disk at a time, for each reader."""

_PARTS: Final = "parts are pairs of partition and attempt, or these two and the rows"

_LOCATED_BYTES: Final = 16 * MIB
"""Of a file that one answer names.  The next question takes 1 ms, beside 10 ms that reading so much takes."""

_PIECE: Final = 256 * KIB
"""Bytes of one message in a reader's tunnel: one frame."""


@final
class Operations:
    """The handlers of one member.

    Args:
        member: stores and reads.
        intake: takes what Spark writes.
        bridge: name of the bridge's cluster; its own nodes may trim.
        address: name of the cluster at which this member's shards are found.
        readers: clusters that may read; None: every node of the realm.
        find_peer: returns what is known of a node that asks for something.
    """

    def __init__(
        self,
        member: BridgeMember,
        intake: Intake,
        *,
        bridge: str,
        address: str,
        readers: Collection[str] | None,
        find_peer: Callable[[NodeId], Peer | None],
    ) -> None:
        self._member = member
        self._intake = intake
        self._bridge = bridge
        self._address = address
        self._readers = None if readers is None else {bridge, *readers}
        self._find_peer = find_peer

    def service(self, cluster: str) -> Service:
        """Return the service for one of the clusters that the member joins."""
        service = Service(cluster)
        for name, handler in (
            ("shards", self._shards),
            ("offsets", self._offsets),
            ("times", self._times),
            ("locate", self._locate),
            ("pin", self._pin),
            ("move", self._move),
            ("cursors", self._cursors),
            ("drop", self._drop),
            ("trim", self._trim),
            ("status", self._status),
            ("commit", self._commit),
            ("abort", self._abort),
        ):
            service.request(name)(handler)
        service.tunnel("read")(self._read)
        service.tunnel("stage")(self._stage)
        return service

    def _check_reader(self, sender: Sender) -> None:
        if self._readers is not None and sender.cluster not in self._readers:
            raise NotAllowed(f"nodes of cluster {sender.cluster!r} may not read from the bridge {self._bridge!r}")

    def _writer(self, sender: Sender) -> Writer:
        self._check_reader(sender)
        return Writer(sender, self._find_peer)

    def _check_owner(self, sender: Sender) -> None:
        if sender.cluster != self._bridge:
            raise NotAllowed(
                f"only nodes of cluster {self._bridge!r} may change its log, and this one speaks for {sender.cluster!r}"
            )

    # -- requests -------------------------------------------------------------------------------------------

    async def _shards(self, request: Request) -> list[dict[str, Any]]:
        self._check_reader(request.sender)
        return [
            {**dataclasses.asdict(state), "id": state.id, "address": self._address, "of": self._member.of or 0}
            for state in self._member.states.values()
        ]

    async def _offsets(self, request: Request) -> dict[str, list[int]]:
        self._check_reader(request.sender)
        fields = _fields(request.payload)
        timeout = fields.get("timeout")
        if not isinstance(timeout, int | float) or not 0 <= timeout <= MAX_POLL:
            raise RemoteError("bad_request", f"timeout is {timeout!r}: use 0 to {MAX_POLL:g} seconds")
        await self._member.wait_news(_offsets(fields, "known"), timeout)
        return {state.id: [state.earliest, state.next] for state in self._member.states.values()}

    async def _times(self, request: Request) -> dict[str, int]:
        self._check_reader(request.sender)
        timestamp = _number(_fields(request.payload), "timestamp")
        store = self._member.store
        return {
            state.id: await trio.to_thread.run_sync(store.offset_at, state.number, timestamp)
            for state in self._member.states.values()
        }

    async def _pin(self, request: Request) -> dict[str, dict[str, int]]:
        self._check_reader(request.sender)
        fields = _fields(request.payload)
        pin = partial(
            self._member.store.pin_cursor, _text(fields, "group"), _offsets(fields, "start"), now=self._member.now()
        )
        cursor = await trio.to_thread.run_sync(pin)
        return {"start": dict(cursor.start), "offsets": dict(cursor.offsets)}

    async def _move(self, request: Request) -> None:
        self._check_reader(request.sender)
        fields = _fields(request.payload)
        move = partial(
            self._member.store.move_cursor, _text(fields, "group"), _offsets(fields, "offsets"), now=self._member.now()
        )
        await trio.to_thread.run_sync(move)

    async def _cursors(self, request: Request) -> list[dict[str, Any]]:
        self._check_reader(request.sender)
        return [
            {
                "group": cursor.group,
                "start": dict(cursor.start),
                "offsets": dict(cursor.offsets),
                "timestamp": cursor.timestamp,
            }
            for cursor in await trio.to_thread.run_sync(self._member.store.cursors)
        ]

    async def _drop(self, request: Request) -> bool:
        self._check_owner(request.sender)
        return await trio.to_thread.run_sync(self._member.store.drop_cursor, _text(_fields(request.payload), "group"))

    async def _trim(self, request: Request) -> int:
        self._check_owner(request.sender)
        fields = _fields(request.payload)
        state = self._state(_text(fields, "shard"))
        before = _number(fields, "before")
        if before > state.next:
            raise RemoteError("bad_request", f"before is {before}: shard {state.id} ends at {state.next}")
        trimmed = await trio.to_thread.run_sync(self._member.store.trim, state.number, before)
        self._member.refresh()
        return trimmed

    async def _status(self, request: Request) -> dict[str, int]:
        self._check_reader(request.sender)
        return dataclasses.asdict(self._member.statistics())

    def _state(self, shard: str) -> ShardState:
        state = self._member.states.get(shard)
        if state is None:
            raise RemoteError("DataLost", f"shard {shard} is not there: the log was wiped or is another one")
        return state

    # -- reading --------------------------------------------------------------------------------------------

    async def _read(self, tunnel: Tunnel) -> None:
        async with _answering(tunnel):
            self._check_reader(tunnel.sender)
            fields = _fields(await tunnel.receive())
            state = self._state(_text(fields, "shard"))
            at, end = _number(fields, "start"), _number(fields, "end")
            while at < end:
                read = partial(self._member.store.read, state.number, state.epoch, at, end, max_bytes=_READ_BYTES)
                chunks = await trio.to_thread.run_sync(read)
                frames = b"".join(chunk.frame for chunk in chunks)
                for position in range(0, len(frames), _PIECE):
                    await tunnel.send(frames[position : position + _PIECE])
                at = chunks[-1].end

    async def _locate(self, request: Request) -> dict[str, Any] | None:
        self._check_reader(request.sender)
        fields = _fields(request.payload)
        if machine() is None or _text(fields, "machine") != machine():
            return None
        state = self._state(_text(fields, "shard"))
        start, end = _number(fields, "start"), _number(fields, "end")
        locate = partial(self._member.store.locate, state.number, state.epoch, start, end, max_bytes=_LOCATED_BYTES)
        try:
            return dataclasses.asdict(await trio.to_thread.run_sync(locate))
        except ValueError as error:
            raise RemoteError("bad_request", str(error)) from None
        except BridgeError as error:
            raise RemoteError(type(error).__name__, str(error)) from None

    # -- writing --------------------------------------------------------------------------------------------

    async def _stage(self, tunnel: Tunnel) -> None:
        async with _answering(tunnel):
            self._writer(tunnel.sender)
            await tunnel.send(await self._intake.stage(_part(_fields(await tunnel.receive())), tunnel))

    async def _commit(self, request: Request) -> int | None:
        writer = self._writer(request.sender)
        fields = _fields(request.payload)
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
        query, batch = _text(fields, "query"), _number(fields, "batch")
        return await self._intake.commit(query, batch, parts, carried, writer=writer)

    async def _abort(self, request: Request) -> None:
        self._writer(request.sender)
        part = _part({**_fields(request.payload), "partition": 0, "attempt": 0})
        await self._intake.abort(part.query, part.batch)


@asynccontextmanager
async def _answering(tunnel: Tunnel) -> AsyncIterator[None]:
    """Tell the other end of a tunnel what went wrong, and that this is all."""
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


def _part(fields: Mapping[str, object]) -> StagedPart:
    return StagedPart(
        query=_text(fields, "query"),
        batch=_number(fields, "batch"),
        partition=_number(fields, "partition"),
        attempt=_number(fields, "attempt"),
    )
