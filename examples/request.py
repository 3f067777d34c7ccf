"""Ask a service by its name.

Run it: python examples/request.py
Or serve from one terminal and ask from another:
    cd examples; iris run request:greeters
    iris request greeters world
"""

import asyncio

import iris.aio

greeters = iris.aio.Service("greeters")


@greeters.request
async def greet(request: iris.aio.Request) -> object:
    if not request.payload:
        raise iris.RemoteError("no-name", "whom shall I greet?")
    return f"hello {request.payload}"


async def main() -> None:
    async with (
        iris.aio.open_node("greeters") as server,
        server.join("greeters", greeters),
        iris.aio.open_node() as client,
    ):
        await client.wait_for("greeters")
        print(await client.request("greeters", "world", timeout=2.0))
        try:
            again = iris.RequestOptions(idempotent=True)  # may be repeated when a member is lost
            await client.request("greeters", "", options=again)
        except iris.RemoteError as error:
            print(f"{error.code}: {error.message}")


if __name__ == "__main__":
    asyncio.run(main())
