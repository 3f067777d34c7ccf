"""A web application that asks the cluster ``prices``: ``uvicorn web:app --host 0.0.0.0 --port 8080``.

Its node serves nothing, so nobody of the realm dials it: the only port that is open is that of HTTP.
"""

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

import iris
import iris.aio

app = FastAPI(lifespan=iris.aio.lifespan("web"))

STATUSES: dict[type[iris.IrisError], int] = {
    iris.NoSuchCluster: 503,
    iris.NotSent: 503,
    iris.Overloaded: 503,
    iris.RequestTimeout: 504,
}
AGAIN = iris.RequestOptions(idempotent=True)


@app.exception_handler(iris.IrisError)
async def show(_: Request, error: iris.IrisError) -> JSONResponse:
    if isinstance(error, iris.RemoteError):
        return JSONResponse({"code": error.code}, 404 if error.code == "no_such_item" else 502)
    return JSONResponse({"error": type(error).__name__}, STATUSES.get(type(error), 502))


@app.get("/prices/{item}")
async def price(item: str, request: Request) -> object:
    return await request.state.node.request("prices", item, timeout=5, options=AGAIN)


@app.get("/livez")
async def alive() -> Response:
    """Answer as long as the event loop runs: a pod that cannot is started anew."""
    return Response()


@app.get("/readyz")
async def ready(request: Request) -> Response:
    """Tell whether the node is linked to the realm.

    It does not ask for a member of ``prices``: while all of them are away, clients should get the 503 of a request,
    and not the connection error of an application that has been taken out as well.
    """
    return Response(status_code=200 if request.state.node.statistics().links else 503)
