"""A file relay: a file of any size goes through a tunnel to an archive, which keeps it under its hash.

Run it: python examples/apps/file_relay.py
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import iris.aio


def new_archive(folder: Path) -> iris.aio.Service:
    archive = iris.aio.Service("archive")

    @archive.tunnel
    async def store(tunnel: iris.aio.Tunnel) -> None:
        incoming = folder / "incoming"
        summary = await tunnel.receive_file(incoming, max_bytes=100 * 1024 * 1024)
        incoming.rename(folder / summary.sha256)
        await tunnel.send(summary.sha256)

    return archive


async def main() -> None:
    with TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "report.bin").write_bytes(bytes(range(256)) * 20_000)
        (folder / "archive").mkdir()
        async with (
            iris.aio.open_node("archive") as server,
            iris.aio.open_node("office") as office,
            server.join("archive", new_archive(folder / "archive")),
        ):
            await office.wait_for("archive")
            async with office.open_tunnel("archive") as tunnel:
                sent = await tunnel.send_file(folder / "report.bin")
                await tunnel.send_eof()
                kept = await tunnel.receive()
            print(f"{sent.size:,} bytes, kept under the hash that was sent: {kept == sent.sha256}")
            print(f"in the archive: {[path.name[:8] for path in (folder / 'archive').iterdir()]}")


if __name__ == "__main__":
    asyncio.run(main())
