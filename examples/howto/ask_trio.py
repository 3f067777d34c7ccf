"""Ask a service from a program of trio."""

import trio

import iris


async def main() -> None:
    async with iris.open_node() as node:
        print(await node.request("greeters", "trio", wait=5))


if __name__ == "__main__":
    trio.run(main)
