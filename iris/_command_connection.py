"""What verbs that open a node share: the options of a connection, and running until done or interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar, final

import click
import trio

import iris
from iris._command_passphrase import load_wrapped, passphrase_of_environment
from iris.security.credential import Credential
from iris.security.credential_file import load_credential

_log: Final = logging.getLogger("iris")

P = ParamSpec("P")
R = TypeVar("R")


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How the node of this process is reached and what it may do."""

    credential: Path | None
    seeds: tuple[str, ...]
    listen: tuple[str, ...]
    site: str | None

    @contextlib.asynccontextmanager
    async def open(self, name: str | None = None) -> AsyncGenerator[iris.Node]:
        """Open the node; in the local realm it speaks for the cluster ``name``, else for that of its credential.

        With ``iris -v`` people read who it is and whom it found, with ``-vv`` its counters at the end, too.
        """
        async with iris.open_node(
            None if self.credential else name,
            credential=self._credential(),
            seeds=self.seeds,
            listen=self.listen,
            site=self.site,
        ) as node:
            _log.info("node %s of cluster %s at %s", node.id, node.name, ", ".join(node.addresses))
            links, clusters = len(node.statistics().links), ", ".join(node.clusters())
            _log.info("realm %s; nodes linked: %d; clusters: %s", node.realm, links, clusters or "none")
            try:
                yield node
            finally:
                statistics = node.statistics()
                for field in dataclasses.fields(statistics):
                    _log.debug("%s: %s", field.name, getattr(statistics, field.name))

    def _credential(self) -> Credential | Path | None:
        """Return the credential itself if it may be wrapped, else its path: a node watches the file for changes."""
        passphrase = passphrase_of_environment()
        if self.credential is None or passphrase is None:
            return self.credential
        return load_wrapped(load_credential, self.credential, passphrase)[0]


def connected(verb: Callable[Concatenate[Connection, P], R]) -> Callable[P, R]:
    """Give ``verb`` the options of a connection, and the connection as its first argument."""

    @click.option(
        "--credential",
        type=click.Path(path_type=Path),
        envvar="IRIS_CREDENTIAL",
        metavar="FILE",
        help="Credential of a realm; without one, the local realm of this user.",
    )
    @click.option("--seeds", multiple=True, metavar="URL", help="A node to join through; may be repeated.")
    @click.option("--listen", multiple=True, metavar="URL", help="Where to be reached; may be repeated.")
    @click.option("--site", metavar="NAME", help="The site of this node.")
    @functools.wraps(verb)
    def with_connection(*args: P.args, **kwargs: P.kwargs) -> R:
        given = {field.name: kwargs.pop(field.name) for field in dataclasses.fields(Connection)}
        return verb(Connection(**given), *args, **kwargs)  # type: ignore[arg-type]  # click checks what it passes

    return with_connection


def run_until_done(work: Callable[[], Awaitable[int | None]], *, endless: bool = False) -> int:
    """Run ``work`` and return its exit status.

    The first SIGINT or SIGTERM cancels it: nodes say goodbye and handlers finish, within the drain time.  The second
    ends the process at once.  Interrupted work has the status 128 + signal, or 0 if it is ``endless``: then an
    interruption is its proper end.
    """
    return trio.run(_supervise, work, endless)


async def _supervise(work: Callable[[], Awaitable[int | None]], endless: bool) -> int:
    status: int | None = None
    received: list[int] = []

    async def watch(scope: trio.CancelScope, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                if received:
                    os._exit(128 + number)
                received.append(number)
                scope.cancel()

    async with trio.open_nursery() as watcher:
        with trio.CancelScope() as scope:
            await watcher.start(functools.partial(watch, scope))
            status = await work()
        watcher.cancel_scope.cancel()
    if received:
        return 0 if endless else 128 + received[0]
    return status or 0
