"""Thermostats at two sites: the office asks all of them over a gateway, and each reports what it measures.

Run it: python examples/apps/thermostats.py
"""

from contextlib import AsyncExitStack

import trio

import iris
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy

WEB = "ws://127.0.0.1:0/gateway"


def new_thermostat(room: str, degrees: float) -> iris.Service:
    thermostats = iris.Service("thermostats")
    state = {"room": room, "target": degrees}

    @thermostats.request
    async def read(request: iris.Request) -> object:
        return state

    @thermostats.broadcast
    async def set_target(message: iris.Message) -> None:
        state["target"] = message.payload

    return thermostats


async def main() -> None:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        factory = await enter(open_gateway(await enter(iris.open_node("gateways", site="factory")), listen=[WEB],
                                           policy=Policy(exports=("thermostats",))))  # fmt: skip
        await enter(open_gateway(await enter(iris.open_node("gateways", site="office")), peers=factory.addresses))
        for room, degrees in (("hall", 18.0), ("store", 12.0)):
            node = await enter(iris.open_node("thermostats", site="factory"))
            await enter(node.join("thermostats", new_thermostat(room, degrees)))
        office = await enter(iris.open_node("office", site="office"))
        await office.wait_for("thermostats", members=2, timeout=30)
        print(await targets(office))
        await office.broadcast("thermostats", 16.5)
        while set((now := await targets(office)).values()) != {16.5}:  # a broadcast has no reply: ask until it is there
            continue
        print(now)


async def targets(office: iris.Node) -> dict[str, float]:
    async with office.survey("thermostats", "", timeout=5) as answers:
        rooms = {answer.payload["room"]: answer.payload["target"] async for answer in answers}
    return dict(sorted(rooms.items()))


if __name__ == "__main__":
    trio.run(main)
