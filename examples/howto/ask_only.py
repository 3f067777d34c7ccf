"""Ask without being a member: this program links to one node, and to those that it asks."""

import iris.sync

with iris.sync.open_node("desk", client=True) as node:
    print(node.request("greeters", "client"))
    print(len(node.nodes()), "member found")
