"""Ask for what cannot be had, and see what each error says."""

import asyncio

from prices import Prices

import iris
import iris.aio


async def main() -> None:
    async with iris.aio.open_node("desk") as node:
        await node.wait_for("prices")
        prices = Prices.client(node)
        try:
            await prices.look_up("coffee")
        except iris.RemoteError as error:
            print(f"{error.code}: {error.message}")
        try:
            await node.request("prices", {"item": 7}, operation="look_up")
        except iris.RemoteError as error:
            print(f"{error.code}: {error.message}")
        try:
            await node.request("princes", {"item": "tea"}, operation="look_up")
        except iris.NoSuchCluster as error:
            print(error)


asyncio.run(main())
