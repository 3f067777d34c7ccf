"""With Kafka: a producer fills a topic, and each group reads it for itself.  The broker here is one for tests."""

from confluent_kafka import Consumer, Producer


def read(servers: str, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    numbers: list[str] = []
    while len(numbers) < 3:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            numbers.append(message.value().decode())
    consumer.close()
    print(group, *numbers)


if __name__ == "__main__":
    producer = Producer({"test.mock.num.brokers": 1})  # in production: bootstrap.servers, acks
    for number in range(3):
        producer.produce("orders", str(number), key="ann")
    producer.flush()
    (broker,) = producer.list_topics().brokers.values()
    for group in ("billing", "audit"):
        read(f"{broker.host}:{broker.port}", group)
