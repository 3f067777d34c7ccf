"""A web application whose clients see what went wrong: errors of Iris as statuses of HTTP.

Run it: pip install fastapi uvicorn, then in this folder: uvicorn web_errors:app
"""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import iris
import iris.aio

app = FastAPI(lifespan=iris.aio.lifespan("web"))

STATUSES = {iris.NoSuchCluster: 503, iris.NotSent: 503, iris.Overloaded: 503, iris.RequestTimeout: 504}
CODES = {"no-name": 422, "bad_request": 422}  # those that your handlers raise, and Iris's own


@app.exception_handler(iris.IrisError)
async def show(_: Request, error: iris.IrisError) -> JSONResponse:
    if isinstance(error, iris.RemoteError):
        return JSONResponse({"code": error.code, "detail": error.message}, CODES.get(error.code, 502))
    headers = {"Retry-After": str(round(error.retry_after) + 1)} if isinstance(error, iris.Overloaded) else None
    return JSONResponse({"detail": str(error)}, STATUSES.get(type(error), 502), headers)


@app.get("/hello/{name}")
async def hello(name: str, request: Request) -> object:
    return await request.state.node.request("greeters", name.strip(), wait=5)


@app.get("/stock/{item}")
async def stock(item: str, request: Request) -> object:
    return await request.state.node.request("stock", item)
