"""Tell every member of a cluster something, then ask every one of them.  Run it: python examples/survey.py"""

import asyncio

import iris.aio


def new_board(place: str) -> iris.aio.Service:
    boards = iris.aio.Service("boards")
    news = asyncio.Queue[str]()

    @boards.broadcast
    async def show(message: iris.Message) -> None:
        await news.put(message.payload)

    @boards.request
    async def read(request: iris.aio.Request) -> object:
        return f"{request.payload} {place}: {await news.get()}"  # waits for the broadcast, which has no reply

    return boards


async def main() -> None:
    async with (
        iris.aio.open_node("boards") as one,
        iris.aio.open_node("boards") as other,
        iris.aio.open_node("tower") as tower,
        one.join("boards", new_board("hall")),
        other.join("boards", new_board("gate")),
    ):
        await tower.wait_for("boards", members=2)
        await tower.broadcast("boards", "UA 1545 leaves from B12")
        async with tower.survey("boards", "shown at", timeout=2.0) as answers:
            print(*sorted([answer.payload async for answer in answers]), sep="\n")
        print(f"{len(answers.missing)} members are missing")


if __name__ == "__main__":
    asyncio.run(main())
