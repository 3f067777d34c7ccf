"""The address of the metrics: whether the node can serve them there, or another service of this machine has it."""

from __future__ import annotations

import errno
import re
import socket
from typing import Final

import trio

from iris.cli.operators.doctor.findings import Diagnosis, ok, problem

_PATIENCE: Final = 1.0
"""Seconds that who serves there has to answer."""

_MOST: Final = 65_536
"""Bytes of a page of metrics that are read: what the process is comes first."""

_FIRST_FREE: Final = 9467
"""Port from which a free one is looked for; a member, bridge and gateway have those before it in ``deploy/``."""

_CLUSTER: Final = re.compile(r'^iris_info\{[^}]*\bcluster="([^"]*)"', re.MULTILINE)


async def examine_metrics(host: str, port: int, own: str | None) -> Diagnosis:
    """Try to listen where metrics are to be served, for a moment; if that is taken, ask who is there.

    Args:
        host: the address to listen at.
        port: the port.
        own: the cluster of the node that is examined, which may be running; None: it may be any.
    """
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        _listen(host, port)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) != errno.EADDRINUSE:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            cause = f"metrics cannot be served at {place}: {reason}"
            return problem("metrics-absent", cause, "ip -brief address")
    else:
        return ok("metrics-ok", f"metrics can be served at {place}")
    cluster = await _who_serves(host, port)
    if cluster is not None and own in (None, cluster):
        return ok("metrics-running", f"a node of cluster {cluster} serves its metrics at {place}")
    who = "another program listens" if cluster is None else f"a node of cluster {cluster} serves its metrics"
    free = f"{host or '127.0.0.1'}:{_free_port(host)}"
    cause = f"{who} at {place}: each service of a machine needs a port of its own for metrics"
    return problem("metrics-taken", cause, f"export IRIS_METRICS={free} (in a unit, EnvironmentFile= has the variable)")


def _listen(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen()


def _reached(host: str) -> str:
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - as the user has it


def _free_port(host: str) -> int:
    for port in range(_FIRST_FREE, _FIRST_FREE + 100):
        try:
            _listen(host, port)
        except OSError:
            continue
        return port
    return 0


async def _who_serves(host: str, port: int) -> str | None:
    """Return the cluster of the node whose metrics are there; None if what listens is no node of Iris."""
    page = b""
    with trio.move_on_after(_PATIENCE):
        try:
            async with await trio.open_tcp_stream(_reached(host), port) as stream:
                await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                async for part in stream:
                    page += part
                    if len(page) > _MOST:
                        break
        except (OSError, trio.BrokenResourceError):
            return None
    found = _CLUSTER.search(page.decode(errors="replace"))
    return None if found is None else found[1]
