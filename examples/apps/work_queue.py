"""A work queue with retries: any member takes a job, a failed one is tried again, a hopeless one is put aside.

Run it: python examples/apps/work_queue.py
"""

import trio

import iris

ATTEMPTS = 3


def new_worker(failures: dict[str, int]) -> iris.Service:
    workers = iris.Service("workers")

    @workers.request
    async def resize(request: iris.Request) -> object:
        picture = request.payload
        if failures.get(picture, 0) > 0:
            failures[picture] -= 1
            raise iris.RemoteError("disk_full", picture)
        return f"{picture} is small now"

    return workers


async def work(node: iris.Node, jobs: trio.MemoryReceiveChannel[str], dead_letters: list[str]) -> None:
    async for job in jobs:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                print(await node.request("workers", job, timeout=5, options=iris.RequestOptions(idempotent=True)))
                break
            except iris.RemoteError as error:
                print(f"attempt {attempt}: {error}")
                await trio.sleep(0.01 * 2**attempt)
        else:
            dead_letters.append(job)


async def main() -> None:
    dead_letters: list[str] = []
    failures = {"b.png": 1, "c.png": 99}
    async with (
        iris.open_node("workers") as one,
        iris.open_node("workers") as other,
        iris.open_node("queue") as queue,
        one.join("workers", new_worker(failures)),
        other.join("workers", new_worker(failures)),
    ):
        await queue.wait_for("workers", members=2)
        sender, jobs = trio.open_memory_channel[str](10)
        for picture in ("a.png", "b.png", "c.png"):
            await sender.send(picture)
        await sender.aclose()
        await work(queue, jobs, dead_letters)
    print(f"put aside: {dead_letters}")


if __name__ == "__main__":
    trio.run(main)
