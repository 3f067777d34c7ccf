"""Shared parts of verbs that open a node: the options of a connection, and running until done or interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, final

import click
import trio
from msgspec import Struct, structs

import iris
from iris.cli.operators.contexts import chosen_context
from iris.cli.starting import is_command
from iris.cli.terminal import note, passphrase_of_environment
from iris.cluster.addresses import is_loopback
from iris.cluster.mesh import TurnedAway
from iris.kernel.loading import loading
from iris.kernel.numerals import read_port, read_whole
from iris.kernel.tasks import leave_unprotected
from iris.security.files import CredentialWatch

_log: Final = logging.getLogger("iris")

_PATIENCE: Final = 10.0
"""Seconds for which warnings may turn out to be part of an error; a user who waits longer has to see them."""

_AGAIN: Final = 0.1
"""Seconds after which an address that another process still has is tried again."""

if TYPE_CHECKING:
    import iris.aio

P = ParamSpec("P")
R = TypeVar("R")


@final
class NodeOptions(Struct, frozen=True, kw_only=True):
    """Options for the addresses and the rights of this process's node."""

    credential: Path | None
    seeds: tuple[str, ...]
    listen: tuple[str, ...]
    site: str | None
    dial_only: bool = False
    dial_networks: tuple[str, ...] = ()
    prefer_site: str | Mapping[str, int] | None = None
    metrics: tuple[str, int] | None = None
    """Address at which /metrics and /healthz are served; set by verbs that have ``metrics_option``.  None if not."""

    metrics_patience: float | None = None
    """Seconds for which another process may have that address.  None if it has to be free at once."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``open_node`` that say how it is reached and what it may do."""
        fields = structs.asdict(self)
        del fields["metrics"], fields["metrics_patience"]
        return {**fields, "credential": self._credential()}

    @contextlib.asynccontextmanager
    async def open(
        self, name: str | None = None, config: iris.Config | None = None, *, member: bool = False
    ) -> AsyncGenerator[iris.Node]:
        """Open the node; in the local realm it speaks for the cluster ``name``, else for that of its credential.

        With ``iris -v`` people read who it is and whom it found, with ``-vv`` its counters at the end, too.

        Args:
            name: the name of the cluster.
            config: limits and timings.
            member: True if the node is ready, as /healthz says it, only as a member of a cluster, gateway or bridge.
        """
        async with (
            self._explained() as held,
            iris.open_node(None if self.credential else name, config=config, **self.arguments()) as node,
            self.serving_metrics(node, member=member),
        ):
            where = ", ".join(node.addresses)
            _log.info(
                "node %s of cluster %s at %s", node.id, node.name, where or "no address", extra={"cluster": node.name}
            )
            links, clusters = len(node.statistics().links), ", ".join(node.clusters())
            _log.info(
                "realm %s; nodes linked: %d; clusters: %s",
                node.realm,
                links,
                clusters or "none",
                extra={"realm": node.realm},
            )
            try:
                yield node
            except iris.NoSuchCluster as error:
                if not node.statistics().links and held.met(TurnedAway):
                    raise iris.ConfigError(self._wrong_realm(node)) from None
                held.forget(str(error))
                raise
            finally:
                statistics = node.statistics()
                for field in dataclasses.fields(statistics):
                    _log.debug("%s: %s", field.name, getattr(statistics, field.name), extra={"cause": field.name})

    @contextlib.asynccontextmanager
    async def serving_metrics(self, node: iris.Node | iris.aio.Node, *, member: bool = False) -> AsyncGenerator[None]:
        """Serve the metrics of a node for the length of the block, if that was asked for; see ``open``."""
        if self.metrics is None:
            yield
            return
        if self.metrics_patience is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve_metrics_later, node, member, self.metrics_patience)
                yield
                nursery.cancel_scope.cancel()
            return
        async with iris.metrics.serve(node, *self.metrics, member=member) as endpoint:
            note(f"metrics at {endpoint.url}/metrics")
            yield

    async def _serve_metrics_later(self, node: iris.Node | iris.aio.Node, member: bool, patience: float) -> None:
        """Serve the metrics when the process that this one replaces has left.

        Raises:
            ConfigError: it has not.
        """
        options, deadline = structs.replace(self, metrics_patience=None), trio.current_time() + patience
        while True:
            try:
                async with options.serving_metrics(node, member=member):
                    await trio.sleep_forever()
            except iris.ConfigError:
                if trio.current_time() > deadline:
                    raise
            await trio.sleep(_AGAIN)

    @contextlib.asynccontextmanager
    async def _explained(self) -> AsyncGenerator[_HeldBack]:
        """Hold back warnings of the first seconds, so that a credential of another realm is one error and no riddle."""
        held = _HeldBack()
        if self.credential is not None:
            _log.addFilter(held)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(held.release_later)
                yield held
                nursery.cancel_scope.cancel()
        finally:
            _log.removeFilter(held)
            held.release()

    def _wrong_realm(self, node: iris.Node) -> str:
        return (
            f"credential {self.credential}: the nodes at {', '.join(self.seeds) or 'its seeds'} are not of its realm, "
            f"{node.realm}, or have changed their gate secret: give a credential that was issued or refreshed there "
            "('iris keys show' tells the realm of each)"
        )

    def _credential(self) -> CredentialWatch | Path | None:
        """Return the file of the credential, which the node watches: keys rotate without a restart."""
        passphrase = passphrase_of_environment()
        if self.credential is None or passphrase is None:
            return self.credential
        return CredentialWatch(self.credential, passphrase=passphrase)


@final
class _HeldBack(logging.Filter):
    """Warnings of a node that looks for others."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[logging.LogRecord] = []
        self._open = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Take a warning, until they are released."""
        if self._open or record.levelno != logging.WARNING:
            return True
        self._records.append(record)
        return False

    async def release_later(self) -> None:
        """Let them go when a request that finds nobody would have ended."""
        await trio.sleep(_PATIENCE)
        self.release()

    def release(self) -> None:
        """Let them go, and all that come."""
        self._open = True
        for record in self._records:
            _log.handle(record)
        self._records.clear()

    def met(self, kind: type[Exception]) -> bool:
        """Return whether a warning was of an error of this kind; then all of them are forgotten."""
        met = any(isinstance(about, kind) for record in self._records for about in _about(record))
        if met:
            self._records.clear()
        return met

    def forget(self, text: str) -> None:
        """Forget the warnings of what an error says as well."""
        self._records = [
            record
            for record in self._records
            if not _about(record) or any(str(it) not in text for it in _about(record))
        ]


def _about(record: logging.LogRecord) -> tuple[object, ...]:
    """Return what a warning is about."""
    return record.args if isinstance(record.args, tuple) else ()


def _read_order(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> str | dict[str, int] | None:
    """Read ``--prefer-site``: the name of one site, or a priority for each of several."""
    if not given or (len(given) == 1 and "=" not in given[0]):
        return given[0] if given else None
    order: dict[str, int] = {}
    for text in given:
        name, _sign, priority = text.partition("=")
        number = read_whole(priority)
        if number is None or name in order:
            raise click.BadParameter(f"{text!r}: use one NAME, or NAME=N for each of several sites, N from 1 to 16")
        order[name] = number
    return order


def _read_address(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, int] | None:
    """Read ``--metrics``."""
    if given is None:
        return None
    host, _colon, text = given.rpartition(":")
    port = read_port(text)
    if port is None:
        raise click.BadParameter(f"{given!r}: use HOST:PORT, or PORT for this machine only; 0 takes a free port")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", port


metrics_option = click.option(
    "--metrics",
    envvar="IRIS_METRICS",
    metavar="[HOST:]PORT",
    callback=_read_address,
    help="Serve /metrics for Prometheus and /healthz there; this machine only if there is no HOST.",
)
"""Option of verbs that serve others: ``NodeOptions.open`` does it, or ``serving_metrics`` for a node of asyncio."""


def _complete(given: dict[str, object]) -> None:
    """Take what was not given from the context in use.  A credential that was given has seeds of its own."""
    if given["credential"] is not None:
        return
    context = chosen_context()
    if context is None:
        return
    given["credential"] = None if context.credential is None else Path(context.credential)
    given["seeds"] = given["seeds"] or context.seeds
    given["site"] = given["site"] or context.site


def connected(verb: Callable[Concatenate[NodeOptions, P], R]) -> Callable[P, R]:
    """Give ``verb`` the options of a connection, and the connection as its first argument."""
    return _connected(verb, "--listen")


def connected_in_site(verb: Callable[Concatenate[NodeOptions, P], R]) -> Callable[P, R]:
    """Give ``verb`` the options of ``connected``, but ``--near`` for the addresses of nodes: it listens for others."""
    return _connected(verb, "--near")


def _connected(verb: Callable[Concatenate[NodeOptions, P], R], listen: str) -> Callable[P, R]:
    @click.option(
        "--credential",
        type=click.Path(path_type=Path, readable=False),  # who reads it says more of what is wrong
        envvar="IRIS_CREDENTIAL",
        metavar="FILE",
        help="Credential of a realm; without one, the local realm of this user.",
    )
    @click.option(
        "--seeds",
        multiple=True,
        envvar="IRIS_SEEDS",
        metavar="URL",
        help="A node to join through, or who knows some; may be repeated.",
    )
    @click.option(
        listen,
        "listen",
        multiple=True,
        metavar="URL",
        help=f"Where {'to be reached' if listen == '--listen' else 'nodes reach this one'}; may be repeated.",
    )
    @click.option("--site", metavar="NAME", help="The site of this node.")
    @click.option(
        "--prefer-site",
        multiple=True,
        metavar="NAME[=N]",
        callback=_read_order,
        help="The site that is asked before all others; or, repeated, with priorities: 1 is asked first, 16 last.",
    )
    @click.option(
        "--dial-only",
        is_flag=True,
        help="Listen nowhere, not even to serve: for members behind NAT or a firewall.",
    )
    @click.option(
        "--dial-networks",
        multiple=True,
        metavar="CIDR",
        help="Connect to IP addresses in this network only, no matter who names them; may be repeated.",
    )
    @functools.wraps(verb)
    def with_connection(*args: P.args, **kwargs: P.kwargs) -> R:
        given = {name: kwargs.pop(name, None) for name in NodeOptions.__struct_fields__}
        _complete(given)
        _load_node()
        if given["prefer_site"] is not None and given["site"] is None:
            raise click.UsageError("--prefer-site is for a node at a site: give --site, too")
        return verb(NodeOptions(**given), *args, **kwargs)  # type: ignore[arg-type]  # click checks what it passes

    return with_connection


def _load_node() -> None:
    """Load what a node is made of.  The command has it to its end, and no look for garbage passes over it again."""
    with loading():
        importlib.import_module("iris.api")
    if is_command():
        gc.freeze()


def listen_at(place: str, *, secured: bool) -> socket.socket:
    """Return a socket that listens at HOST:PORT.

    Args:
        place: HOST:PORT.
        secured: True if others than this machine may come: there is TLS.

    Raises:
        click.UsageError: it is no such place, is taken, or others could read along.
    """
    host, colon, text = place.rpartition(":")
    port = read_port(text)
    if not colon or port is None:
        raise click.UsageError(f"{place!r} is no place to listen at: write HOST:PORT, such as 127.0.0.1:8080")
    if not secured and not is_loopback(f"tcp://{place}"):
        raise click.UsageError(
            f"others than this machine reach {place}, and some read along: give --certificate and --private-key, "
            "or --plaintext if a proxy in front has TLS"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=1024)
    except OSError as error:
        raise click.UsageError(f"cannot listen at {place}: {error.strerror or error}") from None


def url_of(scheme: str, listening: socket.socket) -> str:
    """Return the address of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def tls_of(certificate: Path | None, private_key: Path | None) -> ssl.SSLContext | None:
    """Return what a server with these files of TLS is opened with; None without any.

    Raises:
        click.UsageError: one is missing, or they cannot be used.
    """
    if (certificate is None) != (private_key is None):
        raise click.UsageError("--certificate and --private-key belong together: give both")
    if certificate is None:
        return None
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(certificate, private_key)
    except (OSError, ssl.SSLError) as error:
        raise click.UsageError(f"--certificate {certificate}, --private-key {private_key}: {error}") from None
    return tls


@final
class Interruption:
    """The first SIGINT or SIGTERM, for verbs that serve others: they end in order when it comes.

    Until the work waits for it, it cancels the work, which is not up yet.
    """

    def __init__(self) -> None:
        self.scope: Final = trio.CancelScope()
        """Scope of the work."""
        self._come = trio.Event()
        self._awaited = False

    async def wait(self) -> None:
        """Wait for it; the work goes on then, and has to end."""
        self._awaited = True
        await self._come.wait()

    def come(self) -> None:
        """Note that the signal has come."""
        if self._awaited:
            self._come.set()
        else:
            self.scope.cancel()


def run_until_done(work: Callable[[], Awaitable[int | None]], *, endless: bool = False) -> int:
    """Run ``work`` and return its exit status.

    The first SIGINT or SIGTERM cancels it: its node says goodbye.  The second ends the process at once.  Interrupted
    work has the status 128 + signal, or 0 if it is ``endless``: then an interruption is its proper end.
    """

    async def work_alone(_: Interruption) -> int | None:
        return await work()

    return trio.run(_supervise, work_alone, endless, True)


def run_until_interrupted(work: Callable[[Interruption], Awaitable[None]], *, supervised: bool = False) -> int:
    """Run ``work``, which serves others until it is interrupted, and return its exit status.

    The first SIGINT or SIGTERM lets it end in order: what it has begun for others is finished, within
    ``Config.drain_timeout``, and its node says goodbye.  The second ends the process at once, with 128 + signal.

    Args:
        work: the work.
        supervised: True if the second one changes nothing: the supervisor of this process kills it if need be.
    """
    return trio.run(_supervise, work, True, not supervised)


async def _supervise(work: Callable[[Interruption], Awaitable[int | None]], endless: bool, hasty: bool) -> int:
    status: int | None = None
    received: list[int] = []
    interruption = Interruption()

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for number in signals:
                if received and hasty:
                    os._exit(128 + number)
                received.append(number)
                interruption.come()

    async with trio.open_nursery() as watcher:
        with interruption.scope:
            await watcher.start(watch)
            if is_command():
                leave_unprotected()
            status = await work(interruption)
        watcher.cancel_scope.cancel()
    if received:
        return 0 if endless else 128 + received[0]
    return status or 0
