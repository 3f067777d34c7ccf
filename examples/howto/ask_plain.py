"""Ask a service from a program without an event loop."""

import iris.sync

with iris.sync.open_node() as node:
    print(node.request("greeters", "plain Python", wait=5))
