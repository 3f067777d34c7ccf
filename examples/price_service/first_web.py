"""The smallest application that asks it: uvicorn first_web:app"""

from fastapi import FastAPI, Request

import iris.aio

app = FastAPI(lifespan=iris.aio.lifespan("shop"))


@app.get("/price/{item}")
async def price(item: str, request: Request) -> object:
    return await request.state.node.request("prices", item, wait=5)
