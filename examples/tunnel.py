"""Send more than fits into a message, in order and throttled, and get an answer back.

Run it: python examples/tunnel.py
"""

import asyncio
import hashlib

import iris.aio

archive = iris.aio.Service("archive")


@archive.tunnel
async def store(tunnel: iris.aio.Tunnel) -> None:
    digest = hashlib.sha256()
    async for piece in tunnel:
        digest.update(piece)
    await tunnel.send(digest.hexdigest())


async def main() -> None:
    data = bytes(range(256)) * 40_000
    async with iris.aio.open_node("archive") as server, server.join("archive", archive), iris.aio.open_node() as client:
        await client.wait_for("archive")
        async with client.open_tunnel("archive") as tunnel:
            for start in range(0, len(data), 65_536):
                await tunnel.send(data[start : start + 65_536])  # waits while the other end is slow
            await tunnel.send_eof()
            stored = await tunnel.receive()
        print(f"{len(data):,} bytes arrived unchanged: {stored == hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    asyncio.run(main())
