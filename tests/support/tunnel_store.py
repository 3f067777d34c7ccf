"""A process that serves the cluster ``store``: ``python -m tests.support.tunnel_store CREDENTIAL``.

It prints its address, and ends when its input does.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Final

import trio

import iris
from iris.security.files.credential_file import save_credential
from iris.security.identity.certificate import issue_certificate
from iris.security.identity.credential import GATE_SECRET_SIZE, Credential
from iris.security.identity.permissions import Rights
from iris.security.identity.signing import SigningKey
from tests.support.printing import open_printing

_DAY: Final = 86_400.0

service = iris.Service("store")


@service.tunnel("put")
async def put(tunnel: iris.Tunnel) -> None:
    """Take everything, and answer with its hash and with how much the memory has grown, in bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    digest = hashlib.sha256()
    async for payload in tunnel:
        digest.update(payload)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    await tunnel.send([digest.hexdigest(), grown * 1024])


@service.tunnel("file")
async def file(tunnel: iris.Tunnel) -> None:
    """Take a file, say what came, and send it back."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file"
        summary = await tunnel.receive_file(path)
        await tunnel.send([summary.size, summary.sha256])
        await tunnel.send_file(path)


@service.tunnel("ignore")
async def ignore(tunnel: iris.Tunnel) -> None:
    """Read nothing for as long as the other end lives."""
    await trio.sleep_forever()


@service.request
async def answer(request: iris.Request) -> object:
    """Return the payload."""
    return request.payload


async def main(credential: str) -> None:
    """Serve until the input ends."""
    async with (
        iris.open_node(credential=credential, listen=["tcp://127.0.0.1:0"]) as node,
        node.join("store", service),
    ):
        print(next(url for url in node.addresses if url.startswith("tcp:")), flush=True)  # noqa: T201
        await trio.to_thread.run_sync(sys.stdin.read)


def make_credentials(*names: str) -> list[Credential]:
    """Return portable credentials of clusters of one fresh realm."""
    root, gate = SigningKey(os.urandom(32)), os.urandom(GATE_SECRET_SIZE)
    now = datetime.datetime.now(datetime.UTC).timestamp()
    credentials: list[Credential] = []
    for name in names:
        key = SigningKey(os.urandom(32))
        certificate = issue_certificate(
            root,
            name=name,
            public_key=key.public,
            generation=1,
            not_before=now - _DAY,
            not_after=now + _DAY,
            rights=Rights(),
        )
        credentials.append(Credential(realm=root.public, gate_secrets=(gate,), certificate=certificate, keys=key))
    return credentials


@asynccontextmanager
async def open_store(credential: Credential, directory: Path) -> AsyncIterator[tuple[trio.Process, str]]:
    """Start the process; give it and its URL.  It is killed in the end."""
    path = directory / "store"
    await trio.to_thread.run_sync(save_credential, path, credential)
    # With a runtime directory of its own it is found by its seed and not by the registry of this machine.  The path
    # is short, because those of sockets have to be.
    runtime = await trio.to_thread.run_sync(tempfile.mkdtemp)
    environment = {**os.environ, "XDG_RUNTIME_DIR": runtime}
    try:
        async with open_printing("tests.support.tunnel_store", str(path), stdin=PIPE, env=environment) as opened:
            yield opened
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(shutil.rmtree, runtime)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
