"""Page of the demo: what happens, while it happens, in a browser on this machine.

The browser asks for ``/state`` twice a second, and only then are the processes asked.  The page holds nothing that is
not public, and changes nothing: who may use this machine may read it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import trio

import iris
from iris.cli.connection import listen_at, url_of
from iris.cli.operators.dash.guard import Guard
from iris.cli.operators.dash.server import open_server
from iris.demo.checks import Check, Outcome
from iris.demo.display import Stages
from iris.node.realm import RealmSurvey, open_survey

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_FILES: Final = {
    "/": ("iris.demo", "page.html", "text/html; charset=utf-8"),
    "/page.css": ("iris.demo", "page.css", "text/css"),
    "/page.js": ("iris.demo", "page.js", "text/javascript"),
    "/dash.css": ("iris.cli.operators.dash", "dash.css", "text/css"),
    "/dash.svg": ("iris.cli.operators.dash", "dash.svg", "image/svg+xml"),
}
_STATE: Final = "/state"

_PATIENCE: Final = 1.0
"""Seconds that a state waits for processes; what has not answered by then shows what it said before."""

_LOOKING: Final = 2.0
"""Seconds after a browser has asked, in which it is taken to look: it gets the end, too."""


def next_commands() -> list[str]:
    """Return three commands that work as they stand: a member, a request to it, the realm in a browser."""
    program = Path(sys.executable).with_name("iris")
    found = shutil.which("iris")
    name = "iris" if found is not None and Path(found).samefile(program) else str(program)
    with contextlib.suppress(ValueError):
        if name != "iris":
            name = str(program.relative_to(Path.cwd()))
    question = '{"airport": "JFK", "hour": "2013-01-01T11:00:00Z"}'
    return [
        f"{name} run iris.demo.weather:weather",
        f"{name} request weather '{question}' --json-payload --wait 20",
        f"{name} dash",
    ]


@final
class DemoPage:
    """What the page shows.  Made by ``open_page``.

    Args:
        stages: the stages.
        rows: number of flights.
        names: names of the carriers, by code.
    """

    def __init__(self, stages: Stages, rows: int, names: Mapping[str, str]) -> None:
        self._stages = stages
        self._rows = rows
        self._names = names
        self._node: iris.Node | None = None
        self._survey: RealmSurvey | None = None
        self._asking = trio.Lock()
        self._asked_at = -_LOOKING
        self._members: dict[int, dict[str, object]] = {}
        self._killed: int | None = None
        self._books: dict[str, Any] = {}
        self._spark: dict[str, dict[str, Any]] = {}
        self._end: dict[str, object] | None = None
        self._end_seen = trio.Event()

    @contextlib.asynccontextmanager
    async def watching(self, node: iris.Node) -> AsyncGenerator[None]:
        """Let the page ask the processes, by this node, for the length of the block."""
        async with open_survey(node, timeout=2 * _PATIENCE, patience=_PATIENCE / 2) as survey:
            self._node, self._survey = node, survey
            try:
                yield
            finally:
                async with self._asking:
                    self._node = self._survey = None

    def note_killed(self, process: int) -> None:
        """Show that this process was killed, also if nobody has looked at it."""
        self._killed = process
        self._members.setdefault(process, {"process": process, "served": None, "killed": True})

    async def finish(self, outcome: Outcome, checks: Sequence[Check]) -> None:
        """Show how it ended, and wait until browsers that look have it."""
        self._books = {name: counters.as_fields() for name, counters in outcome.counters.items()}
        self._spark = {carrier: _shown(figures) for carrier, figures in outcome.spark.items()}
        self._end = {
            "pandas": {carrier: _shown(figures) for carrier, figures in outcome.pandas.items()},
            "checks": [{"name": check.name, "ok": check.ok, "found": check.found} for check in checks],
            "commands": next_commands(),
        }
        if trio.current_time() < self._asked_at + _LOOKING:
            with trio.move_on_after(_LOOKING):
                await self._end_seen.wait()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer a browser."""
        path, status = scope["path"], 200
        if path == _STATE:
            content, media_type = json.dumps(await self._state()).encode(), "application/json"
        elif path in _FILES:
            package, name, media_type = _FILES[path]
            content = resources.files(package).joinpath(name).read_bytes()
        else:
            content, media_type, status = b"no such page\n", "text/plain", 404
        headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        if path == _STATE and self._end is not None:
            self._end_seen.set()

    async def _state(self) -> dict[str, object]:
        self._asked_at = trio.current_time()
        await self.look()
        return {
            "rows": self._rows,
            "stages": [stage.as_fields() for stage in self._stages.shown],
            "members": [self._members[process] for process in sorted(self._members)],
            "books": self._books,
            "carriers": {
                carrier: {"name": self._names.get(carrier, carrier), **figures}
                for carrier, figures in sorted(self._spark.items())
            },
            "end": self._end,
        }

    async def look(self) -> None:
        """Ask the processes, as browsers that look have it done; one at a time, and none once all is over."""
        async with self._asking:
            if self._node is None or self._survey is None:
                return
            with trio.move_on_after(2 * _PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._look_at_members, self._survey)
                    for cluster in ("tower", "publisher"):
                        nursery.start_soon(self._look_at_books, self._node, cluster)
                    nursery.start_soon(self._look_at_spark, self._node)
            if self._killed in self._members:
                self._members[self._killed]["killed"] = True

    async def _look_at_members(self, survey: RealmSurvey) -> None:
        for seen in (await survey.collect()).nodes:
            for of in seen.report.clusters:
                if of.cluster == "weather":
                    self._members[seen.report.process] = {
                        "process": seen.report.process, "served": of.served, "killed": False
                    }  # fmt: skip

    async def _look_at_books(self, node: iris.Node, cluster: str) -> None:
        if node.members(cluster):
            with contextlib.suppress(iris.IrisError):
                self._books |= await node.request(cluster, operation="books", timeout=_PATIENCE)

    async def _look_at_spark(self, node: iris.Node) -> None:
        if node.members("spark"):
            with contextlib.suppress(iris.IrisError):
                figures = await node.request("spark", operation="figures", timeout=_PATIENCE)
                self._spark = {carrier: _only_shown(row) for carrier, row in figures.items()}


def _shown(figures: Any) -> dict[str, Any]:
    return {"flights": figures.flights, "mean_delay": figures.mean_delay}


def _only_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("flights", "mean_delay")}


@contextlib.asynccontextmanager
async def open_page(page: DemoPage) -> AsyncGenerator[str]:
    """Serve the page at a free port of this machine for the length of the block; its value is the address."""
    with listen_at("127.0.0.1:0", secured=False) as listening:
        guarded = Guard(page, token="", names=(), public=[*_FILES, _STATE])
        async with open_server(guarded, listening, None):
            yield f"{url_of('http', listening)}/"
