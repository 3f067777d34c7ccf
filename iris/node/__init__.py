"""The front door: Node, open_node, join.  Puts the layers together; holds no mechanism of its own."""
