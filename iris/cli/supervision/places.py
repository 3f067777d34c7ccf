"""The ports of workers that have one command line.

For others each worker listens some ports above those of ``--listen`` or ``IRIS_LISTEN``.  Of N workers there are N + 1
such places: one that replaces another one listens beside it until that has left.  For metrics there are N ports: who
replaces another one has its port when that has left, so that each port stays that of one of the N.  A port 0 is a free
one for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from iris.cli.connection import NodeOptions
from iris.cli.supervision.worker import Place
from iris.cluster.addresses import split_url
from iris.kernel.errors import ConfigError

_HIGHEST: Final = 65_535

_LISTEN: Final = "IRIS_LISTEN"


def options_at(options: NodeOptions, place: Place, patience: float, variables: Mapping[str, str]) -> NodeOptions:
    """Return the options of the worker at a place.

    Args:
        options: those of the command line.
        place: the place.
        patience: seconds in which the worker that it replaces has left.
        variables: environment; ``IRIS_LISTEN`` is for command lines without ``--listen``.

    Raises:
        ConfigError: there is no such port.
    """
    metrics = options.metrics and (options.metrics[0], _port_at(options.metrics[1], place.metrics))
    listen = options.listen or tuple(variables.get(_LISTEN, "").split())
    return structs.replace(
        options,
        listen=tuple(_url_at(url, place.listen) for url in listen),
        metrics=metrics,
        metrics_patience=patience if place.follows else None,
    )


def _url_at(url: str, place: int) -> str:
    if url.startswith("ipc://"):
        return f"{url}-{place}" if place else url
    parts = split_url(url)
    if parts is None:  # which nobody can listen at; the node says so
        return url
    scheme, host, rest = parts
    port, slash, path = rest[1:].partition("/")
    return f"{scheme}://{host}:{_port_at(int(port), place)}{slash}{path}"


def _port_at(port: int, place: int) -> int:
    if port and port + place > _HIGHEST:
        ports = f"{port} to {port + place}"
        raise ConfigError(f"--workers needs the ports {ports}, and {_HIGHEST} is the highest: give lower ones")
    return port + place if port else 0
