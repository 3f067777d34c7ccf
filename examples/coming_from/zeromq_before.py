"""With ZeroMQ: REQ asks REP, SUB follows PUB.  Each side knows the other's address."""

import asyncio

import zmq
import zmq.asyncio


async def answer(context: zmq.asyncio.Context, ready: asyncio.Future[str]) -> None:
    with context.socket(zmq.REP) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        ready.set_result(f"tcp://127.0.0.1:{port}")
        while True:
            await socket.send(b"hello " + await socket.recv())


async def main() -> None:
    with zmq.asyncio.Context() as context:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(answer(context, ready))
        with context.socket(zmq.REQ) as client:
            client.connect(await ready)
            await client.send(b"world")
            print((await client.recv()).decode())
        with context.socket(zmq.XPUB) as publisher, context.socket(zmq.SUB) as subscriber:
            subscriber.connect(f"tcp://127.0.0.1:{publisher.bind_to_random_port('tcp://127.0.0.1')}")
            subscriber.subscribe(b"orders.")
            await publisher.recv()  # the subscription has arrived: what is sent earlier is lost without a word
            await publisher.send_multipart([b"orders.created", b"7"])
            topic, payload = await subscriber.recv_multipart()
            print(topic.decode(), payload.decode())
        server.cancel()
        await asyncio.wait([server])


asyncio.run(main())
