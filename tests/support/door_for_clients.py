"""A door, and services behind it, for clients in other languages: ``python -m tests.support.door_for_clients COMMAND``.

The command gets ``IRIS_DOOR``, the door's address, and ``IRIS_TOKEN``, a token that may do everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from tests.support.command import open_terminal
from tests.support.door_process import ALL_RIGHTS, DoorProcess, token

SERVICE = """
import iris, trio

mirrors = iris.Service("mirrors")
stopped = 0
noted = []


@mirrors.request
async def mirror(request: iris.Request) -> object:
    return request.payload


@mirrors.request("headers")
async def headers(request: iris.Request) -> object:
    return dict(request.headers)


@mirrors.request("nested")
async def nested(request: iris.Request) -> object:
    return {"bytes": request.payload}


@mirrors.request("fail")
async def fail(request: iris.Request) -> object:
    raise iris.RemoteError("out-of-tea", "no tea is left")


@mirrors.request("never")
async def never(request: iris.Request) -> object:
    global stopped
    try:
        await trio.sleep_forever()
    finally:
        stopped += 1


@mirrors.request("stopped")
async def count_stopped(request: iris.Request) -> object:
    return stopped


@mirrors.request("noted")
async def list_noted(request: iris.Request) -> object:
    return noted


@mirrors.broadcast
async def note(message: iris.Message) -> None:
    noted.append(message.payload)


@mirrors.tunnel
async def mirror_all(tunnel: iris.Tunnel) -> None:
    async for payload in tunnel:
        await tunnel.send(payload)


@mirrors.tunnel("count")
async def count(tunnel: iris.Tunnel) -> None:
    for number in range(await tunnel.receive()):
        await tunnel.send(number)


@mirrors.tunnel("fail")
async def fail_tunnel(tunnel: iris.Tunnel) -> None:
    await tunnel.send("last")
    await tunnel.receive()
    raise iris.RemoteError("out-of-tea", "no tea is left")
"""


@contextmanager
def open_door_for_clients() -> Generator[dict[str, str]]:
    """Run the door for the length of the block, whose value are the variables by which clients find it."""
    with open_terminal() as terminal:
        (terminal.directory / "mirror_service.py").write_text(SERVICE)
        rights = ("--serve", "go.>", "--serve", "go", "--take", "go.>", "--read", "go/go.>", "--read", "go.>")
        secret = token(terminal, "client", *ALL_RIGHTS, *rights, "--lease", "iris.door/>")
        with (
            terminal.started("bridge", "--topic", "go.>", "--data", "log", announces="serves bridge"),
            terminal.started("run", "mirror_service:mirrors", announces="mirrors"),
            DoorProcess(terminal) as door,
        ):
            yield {"IRIS_DOOR": door.url, "IRIS_TOKEN": secret}


if __name__ == "__main__":
    with open_door_for_clients() as place:
        sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, **place}, check=False).returncode)
