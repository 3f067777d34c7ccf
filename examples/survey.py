"""Tell every member of a cluster something, then ask every one of them.  Run it: python examples/survey.py"""

import trio

import iris


def new_board(place: str) -> iris.Service:
    boards = iris.Service("boards")
    told, news = trio.open_memory_channel[str](1)

    @boards.broadcast
    async def show(message: iris.Message) -> None:
        await told.send(message.payload)

    @boards.request
    async def read(request: iris.Request) -> object:
        return f"{request.payload} {place}: {await news.receive()}"  # waits for the broadcast, which has no reply

    return boards


async def main() -> None:
    async with (
        iris.open_node("boards") as one,
        iris.open_node("boards") as other,
        iris.open_node("tower") as tower,
        one.join("boards", new_board("hall")),
        other.join("boards", new_board("gate")),
    ):
        await tower.wait_for("boards", members=2)
        await tower.broadcast("boards", "UA 1545 leaves from B12")
        async with tower.survey("boards", "shown at", timeout=2.0) as answers:
            print(*sorted([answer.payload async for answer in answers]), sep="\n")
        print(f"{len(answers.missing)} members are missing")


if __name__ == "__main__":
    trio.run(main)
