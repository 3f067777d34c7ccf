"""Answer requests and talk over tunnels: the service that the JavaScript of docs/howto/doors/web.md asks.

Run it: iris run examples.doors.greeters:greeters
"""

import iris

greeters = iris.Service("greeters")


@greeters.request
async def greet(request: iris.Request) -> object:
    return f"hello {request.payload}"


@greeters.tunnel
async def echo(tunnel: iris.Tunnel) -> None:
    async for payload in tunnel:
        await tunnel.send(payload)
