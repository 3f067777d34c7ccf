"""Addresses to listen at: whether this machine lets a node listen there."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Final

from iris.cli.operators.doctor.findings import Diagnosis, ok, problem
from iris.cluster.address_rules import check_listening
from iris.cluster.addresses import resolve_host, split_url
from iris.kernel.errors import ConfigError
from iris.kernel.transport import check_url

_WILDCARDS: Final = {"": "0.0.0.0", "*": "0.0.0.0", "[::]": "::"}  # noqa: S104 - as the user has it


async def examine_listening(url: str) -> Diagnosis:
    """Try to listen at ``url``, for a moment."""
    try:
        check_listening(check_url(url))
    except ConfigError as error:
        return problem("listen-malformed", str(error), "iris doctor --listen tcp://HOST:PORT")
    parts = split_url(url)
    if parts is None:
        return _examine_socket(Path(url.removeprefix("ipc://")))
    _, host, rest = parts
    port = port_of(rest)
    try:
        places = await resolve_host(_WILDCARDS.get(host, host.strip("[]")), socket.SOCK_STREAM)
        for family, address in places:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address[0], port, *address[2:]))
                probe.listen()
    except (OSError, UnicodeError, RuntimeError) as error:
        return _refused(url, port, error)
    return ok("listen-ok", f"{url}: can listen there")


def port_of(rest: str) -> int:
    """Return the port in the last part of what ``split_url`` returns."""
    return int(rest[1:].partition("/")[0])


def beside(url: str) -> str:
    """Return an address with a free port of the same host, for a node beside the one that listens at ``url``."""
    parts = split_url(url)
    assert parts is not None
    return f"tcp://{parts[1]}:0"


def _examine_socket(path: Path) -> Diagnosis:
    if not os.access(path.parent, os.W_OK | os.X_OK):
        cause = f"ipc://{path}: user {os.geteuid()} cannot write to {path.parent}"
        return problem("listen-forbidden", cause, f"ls -ld {path.parent}")
    return ok("listen-ok", f"ipc://{path}: can listen there")


def _refused(url: str, port: int, error: Exception) -> Diagnosis:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return problem("listen-taken", f"{url}: another program listens at port {port}", f"ss -ltnp 'sport = :{port}'")
    if number in (errno.EACCES, errno.EPERM):
        cause = f"{url}: user {os.geteuid()} may not listen at port {port}"
        return problem("listen-forbidden", cause, f"sysctl net.ipv4.ip_unprivileged_port_start={port}")
    if isinstance(error, OSError) and number is not None:
        reason = error.strerror or str(error)
        return problem("listen-absent", f"{url}: no address of this machine ({reason.lower()})", "ip -brief address")
    return problem("listen-absent", f"{url}: no address of this machine ({error})", "ip -brief address")
