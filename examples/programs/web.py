"""A web application that asks a cluster: FastAPI, or anything made of Starlette.

Run it: pip install fastapi uvicorn, then in this folder: uvicorn web:app
In another terminal, in the checkout: iris run examples.request:greeters; then open http://127.0.0.1:8000/hello/world
"""

from fastapi import FastAPI, Request

import iris.aio

app = FastAPI(lifespan=iris.aio.lifespan("web"))


@app.get("/hello/{name}")
async def hello(name: str, request: Request) -> object:
    return await request.state.node.request("greeters", name, wait=5)
