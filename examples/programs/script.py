"""A script without an event loop: it serves a cluster, asks it, and follows a topic.

Run it: python examples/programs/script.py
"""

import iris
import iris.sync

greeters = iris.Service("greeters")


@greeters.request
def greet(request: iris.Request) -> object:
    return f"hello {request.payload}"


with iris.sync.open_node("script") as node, node.join("greeters", greeters):
    with node.subscribe("orders.*") as orders:
        for number in range(3):
            node.publish("orders.created", number)
        for _, order in zip(range(3), orders, strict=False):
            print(order.topic, order.payload)
    print(node.request("greeters", "world"))
