"""Tower of the demo: asks for the weather, broadcasts gate changes, surveys the boards, fills the archive.

``python -m iris.demo.tower ROWS`` is the cluster ``tower``.  It has an operation for each stage, which replies with
its outcome.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, final

import trio

import iris
from iris.demo.boards import DepartureBoard
from iris.demo.checks import count_all, count_since
from iris.demo.data import (
    GateChange,
    Hour,
    Observation,
    departure_hours,
    flights_table,
    gate_changes,
    read_flights,
    read_observations,
)
from iris.demo.progress import Progress

MEMBERS: Final = {"weather": 3, "boards": 3, "archive": 1, "bridge": 1}
"""The clusters that the tower waits for, with the number of their members."""

_START: Final = 30.0
_ASKING: Final = 64
"""Concurrent requests."""
_PATIENCE: Final = 10.0
_BETWEEN_SURVEYS: Final = 256
"""Changes between two surveys, which show how far the boards are."""
_BETWEEN_QUESTIONS: Final = 0.02
_PIECE: Final = 256 * 1024


@final
class Tower:
    """The stages of the tower."""

    def __init__(self, node: iris.Node, rows: int) -> None:
        flights = read_flights(rows)
        self._node = node
        self._rows = rows
        self._hours = departure_hours(flights)
        self._changes = gate_changes(flights)
        self._observations = read_observations()
        self._killed = trio.Event()
        self._progress = Progress()
        """Progress of the stage that was begun last."""

    def service(self) -> iris.Service:
        """Return what the airport asks for: the stages, and how far they are."""
        service = iris.Service("tower")
        stages = (self.gather, self.ask, self.change_gates, self.fill_archive)
        for stage in stages:
            service.request(stage.__name__)(partial(self._begin, stage))
        service.request("killed")(self._note_killed)
        service.request("progress")(self._progress.report)
        service.request("books")(self._report_books)
        return service

    async def _begin(self, stage: Callable[[], Awaitable[object]], _request: iris.Request) -> object:
        self._progress.done = 0
        return await stage()

    async def gather(self) -> dict[str, Any]:
        """Wait until every member of every cluster is here."""
        progress = self._progress
        for cluster, members in MEMBERS.items():
            await self._node.wait_for(cluster, members, timeout=_START)
            progress.advance(members)
        return {"members": progress.done}

    async def ask(self) -> dict[str, Any]:
        """Ask for the weather in every hour of the flights, and go on while a member is being killed."""
        itinerary = ask_through_a_loss(self._hours, self._killed)
        progress = self._progress
        outcome = WeatherRequests()
        before = self._node.statistics().requests
        async with trio.open_nursery() as nursery:
            for _ in range(_ASKING):
                nursery.start_soon(self._ask_next, itinerary, outcome, progress)
        counters = count_since(before, self._node.statistics().requests)
        return {"counters": counters.as_fields(), "hours": len(self._hours), **dataclasses.asdict(outcome)}

    async def _ask_next(self, itinerary: Iterator[Hour], outcome: WeatherRequests, progress: Progress) -> None:
        for hour in itinerary:
            question = {"airport": hour[0], "hour": hour[1]}
            outcome.asked += 1
            try:
                reply = await self._node.request(
                    "weather", question, timeout=_PATIENCE, options=iris.RequestOptions(idempotent=True)
                )
            except iris.IrisError as error:
                outcome.failed += 1
                outcome.errors = (*outcome.errors, f"{type(error).__name__}: {error}")[:3]
            else:
                outcome.check(reply, self._observations.get(hour))
            progress.advance()

    def _report_books(self, _request: iris.Request) -> object:
        counted = self._node.statistics()
        patterns = {"request": counted.requests, "broadcast": counted.broadcasts, "tunnel": counted.tunnels.messages}
        return {name: count_all(of).as_fields() for name, of in patterns.items()}

    def _note_killed(self, _request: iris.Request) -> None:
        """The member is dead."""
        self._killed.set()

    async def change_gates(self) -> dict[str, Any]:
        """Broadcast every gate change; survey the boards now and then, and at the end."""
        before = self._node.statistics()
        progress = self._progress
        answers: list[dict[str, Any]] = []
        surveyed = 0
        for start in range(0, max(len(self._changes), 1), _BETWEEN_SURVEYS):
            for change in self._changes[start : start + _BETWEEN_SURVEYS]:
                await self._node.broadcast("boards", change.as_payload())
                progress.advance()
            answers = await self._survey()
            surveyed += 1
        # A broadcast has no reply: that the last ones are shown is only known by asking again.
        with trio.move_on_after(_PATIENCE):
            while any(board["changes"] < len(self._changes) for board in answers):
                await trio.sleep(_BETWEEN_QUESTIONS)
                answers = await self._survey()
                surveyed += 1
        after = self._node.statistics()
        return {
            "changes": len(self._changes),
            "digest": digest_of(self._changes),
            "boards": answers,
            "surveys": surveyed,
            "counters": count_since(before.broadcasts, after.broadcasts).as_fields(),
            "survey_counters": count_since(before.requests, after.requests).as_fields(),
        }

    async def _survey(self) -> list[dict[str, Any]]:
        async with self._node.survey("boards", None, timeout=_PATIENCE) as answers:
            found: list[dict[str, Any]] = [answer.payload async for answer in answers]
        return found

    async def fill_archive(self) -> dict[str, Any]:
        """Send the table through a tunnel and compare what the archive says it is."""
        table = flights_table(self._rows)
        progress = self._progress
        before = self._node.statistics().tunnels.messages
        async with self._node.open_tunnel("archive") as tunnel:
            for start in range(0, len(table), _PIECE):
                piece = table[start : start + _PIECE]
                await tunnel.send(piece)
                progress.advance(len(piece))
            await tunnel.send_eof()
            receipt = await tunnel.receive()
        counters = count_since(before, self._node.statistics().tunnels.messages)
        return {
            "bytes": len(table),
            "sha256": hashlib.sha256(table).hexdigest(),
            "receipt": receipt,
            "counters": counters.as_fields(),
        }


@final
@dataclasses.dataclass(slots=True)
class WeatherRequests:
    """Outcome of the requests for weather."""

    asked: int = 0
    right: int = 0
    wrong: int = 0
    """Replies that are not what the table says."""
    failed: int = 0
    errors: tuple[str, ...] = ()
    """The first three."""

    def check(self, reply: object, expected: Observation | None) -> None:
        """Compare a reply with the table."""
        if reply == expected:
            self.right += 1
        else:
            self.wrong += 1


def first_third(hours: int) -> int:
    """Return for how many hours is asked before a member is killed."""
    return (hours + 2) // 3


def ask_through_a_loss(hours: list[Hour], killed: trio.Event) -> Iterator[Hour]:
    """Yield every hour; a member is killed when the first third is done: repeat the second third until it is dead.

    So requests are certainly outstanding when it dies, however few there are and however long the killing takes.
    """
    third = first_third(len(hours))
    yield from hours[:third]
    second = hours[third : 2 * third]
    yield from second
    for hour in itertools.cycle(second or hours):
        if killed.is_set():
            break
        yield hour
    yield from hours[2 * third :]


def digest_of(changes: list[GateChange]) -> str:
    """Return the digest of a board that received exactly this, in this order."""
    board = DepartureBoard()
    for change in changes:
        board.show(change.as_payload())
    return str(board.summary()["digest"])


async def _serve(rows: int) -> None:
    async with iris.open_node("tower") as node, node.join("tower", Tower(node, rows).service()):
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]))
