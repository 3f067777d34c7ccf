"""The web application of web.py, tested with a service in memory: pip install pytest anyio httpx2, then pytest"""

import httpx2
import pytest
import web

import iris.aio.testing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_the_page_says_what_the_service_says():
    greeters = iris.aio.Service("greeters")

    @greeters.request
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with (
        iris.aio.testing.open_network() as network,
        network.open_node("greeters") as member,
        member.join("greeters", greeters),
        web.app.router.lifespan_context(web.app) as state,
    ):

        async def application(scope, receive, send):
            await web.app({**scope, "state": state}, receive, send)  # a server hands on what the lifespan yields

        transport = httpx2.ASGITransport(application)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            assert (await client.get("/hello/world")).json() == "hello world"
