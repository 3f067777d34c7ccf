"""The ``archive`` cluster of the demo: receives tables through tunnels and acknowledges what arrived."""

from __future__ import annotations

import hashlib
import tempfile

import iris

archive = iris.Service("archive")


@archive.tunnel
async def store(tunnel: iris.Tunnel) -> None:
    """Write what comes to a file, then read that and reply with its size and SHA-256."""
    with tempfile.TemporaryFile() as file:
        async for piece in tunnel:
            file.write(piece)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        await tunnel.send({"bytes": file.tell(), "sha256": digest.hexdigest()})
        await tunnel.send_eof()
