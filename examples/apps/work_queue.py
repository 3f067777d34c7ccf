"""A work queue with retries: any member takes a job, a failed one is tried again, a hopeless one is put aside.

Run it: python examples/apps/work_queue.py
"""

import asyncio
from collections.abc import Iterable

import iris
import iris.aio

ATTEMPTS = 3


def new_worker(failures: dict[str, int]) -> iris.aio.Service:
    workers = iris.aio.Service("workers")

    @workers.request
    async def resize(request: iris.aio.Request) -> object:
        picture = request.payload
        if failures.get(picture, 0) > 0:
            failures[picture] -= 1
            raise iris.RemoteError("disk_full", picture)
        return f"{picture} is small now"

    return workers


async def work(node: iris.aio.Node, jobs: Iterable[str], dead_letters: list[str]) -> None:
    for job in jobs:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                print(await node.request("workers", job, timeout=5, options=iris.RequestOptions(idempotent=True)))
                break
            except iris.RemoteError as error:
                print(f"attempt {attempt}: {error}")
                await asyncio.sleep(0.01 * 2**attempt)
        else:
            dead_letters.append(job)


async def main() -> None:
    dead_letters: list[str] = []
    failures = {"b.png": 1, "c.png": 99}
    async with (
        iris.aio.open_node("workers") as one,
        iris.aio.open_node("workers") as other,
        iris.aio.open_node("queue") as queue,
        one.join("workers", new_worker(failures)),
        other.join("workers", new_worker(failures)),
    ):
        await queue.wait_for("workers", members=2)
        await work(queue, ("a.png", "b.png", "c.png"), dead_letters)
    print(f"put aside: {dead_letters}")


if __name__ == "__main__":
    asyncio.run(main())
