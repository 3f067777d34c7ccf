"""With gRPC: quotes.proto says what is called, a channel says where."""

import asyncio
from typing import Any

import grpc
import grpc.aio

messages: Any
services: Any
messages, services = grpc.protos_and_services("quotes.proto")  # needs grpcio-tools; else generated before


class Quotes(services.QuotesServicer):
    async def LookUp(self, query: Any, context: Any) -> Any:
        return messages.Offer(item=query.item, price=2.5 * query.count)


async def main() -> None:
    server = grpc.aio.server()
    services.add_QuotesServicer_to_server(Quotes(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        offer = await services.QuotesStub(channel).LookUp(messages.Query(item="tea", count=2), timeout=2)
        print(offer.item, offer.price)
    await server.stop(None)


asyncio.run(main())
