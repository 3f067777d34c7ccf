"""``iris door``: lend a place among the nodes to programs that have none."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import re
import resource
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import iris.aio
from iris.cli.connection import NodeOptions, connected, listen_at, metrics_option, tls_of, url_of
from iris.cli.event_loop import Interrupted, until_interrupted
from iris.cli.terminal import Whole, note

if TYPE_CHECKING:
    from iris.doors import clients as door_clients
    from iris.doors.http import HttpStatistics
    from iris.doors.mqtt import MqttStatistics

DOOR: Final = "iris.door"
"""The cluster that a door of the local realm speaks for."""

_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")

FILE: Final = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--http", "http_at", multiple=True, metavar="HOST:PORT", help="Serve HTTP there; may be repeated.")
@click.option("--mqtt", "mqtt_at", multiple=True, metavar="HOST:PORT", help="Serve MQTT there; may be repeated.")
@click.option("--nng", "nng_at", metavar="URL", help="Serve nng there: ipc:///PATH or tls+tcp://HOST:PORT.")
@click.option("--nng-client", metavar="NAME", help="Whose rights those have who come by --nng, which knows no tokens.")
@click.option("--nng-serve", multiple=True, metavar="CLUSTER", help="Beta: cluster that a REP may serve; repeated.")
@click.option("--tokens", type=FILE, required=True, metavar="FILE", help="Who may come: see 'iris keys token'.")
@click.option("--certificate", type=FILE, metavar="FILE", help="The certificate chain of this door, for TLS.")
@click.option("--private-key", type=FILE, metavar="FILE", help="Its key.")
@click.option("--client-ca", type=FILE, metavar="FILE", help="Who signs the certificates of clients that come by nng.")
@click.option("--plaintext", is_flag=True, help="No TLS, though others than this machine can come: a proxy has it.")
@click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN", help="Pages that may use it; repeated.")
@click.option("--bridge", default="bridge", show_default=True, metavar="NAME", help="Whose jobs and log it lends.")
@click.option(
    "--max-connections", type=Whole(1), default=1000, show_default=True, metavar="N",
    help="Of HTTP, as many of MQTT, and of each protocol of nng.",
)  # fmt: skip
@metrics_option
@connected
def door(
    connection: NodeOptions,
    http_at: tuple[str, ...],
    mqtt_at: tuple[str, ...],
    nng_at: str | None,
    nng_client: str | None,
    nng_serve: tuple[str, ...],
    tokens: Path,
    certificate: Path | None,
    private_key: Path | None,
    client_ca: Path | None,
    plaintext: bool,
    origins: tuple[str, ...],
    bridge: str,
    max_connections: int,
) -> int:
    """Let programs without a node address clusters, until Ctrl-C: over HTTP, MQTT and nng.

    The door is a node of the realm, and asks with its own rights; what each client may do of that says its token.
    """
    if not (http_at or mqtt_at or nng_at):
        raise click.UsageError("a door is reached by --http, --mqtt or --nng: give one of them")
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            expected = "write https://HOST or https://HOST:PORT, in small letters and with nothing behind, or *"
            raise click.UsageError(f"{origin!r} is no origin as browsers name it: {expected}")
    tls = tls_of(certificate, private_key)
    if (nng_at is None) != (nng_client is None):
        raise click.UsageError("--nng and --nng-client belong together: nng's clients show no token")
    if nng_serve and nng_at is None:
        raise click.UsageError("--nng-serve belongs to --nng")
    try:
        from iris.doors import clients as door_clients
        from iris.doors import http, mqtt, nng, programs
    except ModuleNotFoundError as error:
        raise click.ClickException(f"a door needs {error.name}: pip install 'iris-mesh[doors]'") from None
    _raise_descriptors()
    clients = door_clients.Clients(tokens, time.time)

    async def serve(interrupted: Interrupted) -> None:
        async with contextlib.AsyncExitStack() as stack:
            node = await stack.enter_async_context(
                iris.aio.open_node(None if connection.credential else DOOR, **connection.arguments())
            )
            await stack.enter_async_context(connection.serving_metrics(node))
            clusters = programs.ServedClusters(node, bridge)
            note(f"{node.id} is a door; clients: {len(clients)}")
            if http_at:
                sockets = _listening(stack, http_at, plaintext or tls is not None)
                limits = http.HttpLimits(connections=max_connections)
                http_door = await stack.enter_async_context(
                    http.open_http_door(
                        node,
                        clients,
                        clusters,
                        sockets=sockets,
                        tls=tls,
                        origins=origins,
                        bridge=bridge,
                        limits=limits,
                    )
                )
                stack.callback(lambda: _print_counters("HTTP", http_door.statistics()))
                _print_addresses("https" if tls else "http", sockets)
            if mqtt_at:
                sockets = _listening(stack, mqtt_at, plaintext or tls is not None)
                mqtt_door = await stack.enter_async_context(
                    mqtt.open_mqtt_door(
                        node, clients, sockets=sockets, tls=tls, clusters=clusters, max_connections=max_connections
                    )
                )
                stack.callback(lambda: _print_counters("MQTT", mqtt_door.statistics()))
                _print_addresses("mqtts" if tls else "mqtt", sockets)
            if nng_at and nng_client:
                opened_nng = nng.open_nng_door(
                    node, clients, nng_at, nng_client, certificate=certificate, private_key=private_key,
                    client_ca=client_ca, serve=nng_serve, clusters=clusters, max_connections=max_connections,
                )  # fmt: skip
                for protocol, url in (await stack.enter_async_context(opened_nng)).addresses.items():
                    note(f"{protocol} {url}")
            await stack.enter_async_context(_following(clients))
            gc.collect()
            gc.freeze()  # else all that is loaded is looked at again each time that garbage is: 20 ms for every client
            await interrupted()

    return asyncio.run(until_interrupted(serve))


def _raise_descriptors() -> None:
    """Let this process have as many descriptors as it may: the usual limit is 1,024, and each connection takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the system has one that is lower still
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listening(stack: contextlib.AsyncExitStack, places: tuple[str, ...], secured: bool) -> list[socket.socket]:
    """Return a socket that listens at each place."""
    sockets: list[socket.socket] = []
    for place in places:
        sockets.append(listen_at(place, secured=secured))
        stack.callback(sockets[-1].close)
    return sockets


def _print_addresses(scheme: str, sockets: list[socket.socket]) -> None:
    for one in sockets:
        note(url_of(scheme, one))


def _print_counters(protocol: str, counted: HttpStatistics | MqttStatistics) -> None:
    """Say what a door has done, and what its bounds have refused."""
    values: dict[str, Any] = {one.name: getattr(counted, one.name) for one in dataclasses.fields(counted)}
    refused: dict[int, int] = values.pop("refused")
    counters = [f"{name.replace('_', ' ')} {value}" for name, value in values.items() if value]
    counters += [f"status {status}: {count}" for status, count in sorted(refused.items())]
    note(f"{protocol}: {', '.join(counters) or 'nobody came'}")


@contextlib.asynccontextmanager
async def _following(clients: door_clients.Clients) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as tasks:  # a door that no longer sees who was withdrawn must not stay open
        following = tasks.create_task(clients.follow())
        yield
        following.cancel()
