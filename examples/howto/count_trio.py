"""Have a handler that takes the processor called in processes, in a program of trio."""

from collections import Counter

import trio

import iris

texts = iris.Service("texts")


@texts.request("count", process=True)
def count(text: str) -> dict[str, int]:
    return Counter(text.split())


async def main() -> None:
    async with iris.open_node() as node, node.join("texts", texts):
        print(await node.request("texts", "tea for two", operation="count"))


if __name__ == "__main__":
    trio.run(main)
