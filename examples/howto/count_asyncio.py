"""Have a handler that takes the processor called in processes, in a program of asyncio."""

import asyncio
from collections import Counter

import iris
import iris.aio

texts = iris.Service("texts")


@texts.request("count", process=True)
def count(text: str) -> dict[str, int]:
    return Counter(text.split())


@texts.request("ping")
async def ping(request: iris.Request) -> str:
    return "here"


async def main() -> None:
    async with iris.aio.open_node() as node, node.join("texts", texts):
        counted = await node.request("texts", "tea for two and two for tea", operation="count")
        print(counted["tea"], await node.request("texts", operation="ping"))


if __name__ == "__main__":
    asyncio.run(main())
