"""Doors: what lets programs without a node address clusters by name, over HTTP, nng and MQTT.

A door is a node that lends its place.  Its clients show tokens, which say what each may do; members see the door's
cluster, and the client's name in the header ``iris-client``.  Promises: what a client sends or does not read costs that
client alone, events that it misses are told, and nothing stays open once its token is gone.
Not here: encryption up to the client, unless the door has a TLS certificate.

``Clients`` are in ``iris.doors.clients``: they load asyncio, which ``iris keys token`` can do without.
"""

from iris.doors.problems import Problem, problem_of
from iris.doors.tokens import RIGHTS, Token, grant, load_tokens, withdraw

__all__ = ("RIGHTS", "Problem", "Token", "grant", "load_tokens", "problem_of", "withdraw")
