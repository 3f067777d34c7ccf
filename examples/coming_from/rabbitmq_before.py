"""With RabbitMQ, by kombu: a message is in a queue until a consumer has acknowledged it.  The broker is in memory."""

from collections import Counter

from kombu import Connection, Exchange, Message, Queue

exchange = Exchange("thumbnails", type="direct", durable=True)
queue = Queue("thumbnails", exchange, routing_key="thumbnails", durable=True)
attempts = Counter[str]()


def shrink(picture: str, message: Message) -> None:
    attempts[picture] += 1  # RabbitMQ counts them for quorum queues only
    if picture == "b.png" and attempts[picture] == 1:
        print(f"{picture}: the disk is full")
        message.requeue()
    else:
        print(f"{picture} is small now")
        message.ack()


if __name__ == "__main__":
    with Connection("memory://") as connection:  # in production: amqp://
        with connection.Producer() as producer:
            for picture in ("a.png", "b.png"):
                producer.publish(picture, exchange=exchange, routing_key="thumbnails", declare=[queue])
        with connection.Consumer(queue, callbacks=[shrink]) as consumer:
            consumer.qos(prefetch_count=1)
            for _ in range(3):
                connection.drain_events(timeout=5)
