"""The front door: Node, open_node, join.  Puts the layers together; holds no mechanism of its own.

Promises: arguments are checked before anything happens; every public method says what cancelling it leaves behind; a
node that is used outside of its block or its trio run raises an error.
"""
