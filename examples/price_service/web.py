"""A web application that asks the price service: pip install fastapi uvicorn, then uvicorn web:app"""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import iris
import iris.aio

app = FastAPI(lifespan=iris.aio.lifespan("shop"))
AGAIN = iris.RequestOptions(idempotent=True)  # to look up a price twice does no harm


@app.get("/price/{item}")
async def price(item: str, request: Request) -> object:
    return await request.state.node.request("prices", item, wait=5, options=AGAIN)


@app.get("/quote/{item}/{count}")
async def quote(item: str, count: int, request: Request) -> object:
    return await request.state.node.request("quotes", {"item": item, "count": count}, wait=5, options=AGAIN)


@app.put("/price/{item}")
async def change(item: str, price: float, request: Request) -> None:
    await request.state.node.request("prices", {"item": item, "price": price}, operation="change", wait=5)


@app.exception_handler(iris.RemoteError)
async def refused(_: Request, error: iris.RemoteError) -> JSONResponse:
    return JSONResponse({"code": error.code}, 404 if error.code == "unknown_item" else 502)


@app.exception_handler(iris.DeliveryError)
async def nobody_there(_: Request, error: iris.DeliveryError) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 503)
