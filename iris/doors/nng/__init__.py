"""The door for nng: REQ asks a cluster, SURVEYOR surveys one, REP serves one, PUSH publishes, SUB follows topics.

::

    (echo greeters text; echo world) | nngcat --req --dial ipc:///run/door.req --raw --file -

A message is a line of text and a payload: the name of a cluster or topic, what the payload is, and options.  Each
protocol has an address of its own.  nng knows no tokens: who can connect, which files or certificates decide,
has the rights of one client.

Promises: a request is answered by a reply or by what went wrong; a survey by one message that has all answers and
names who lacks; events on a topic are numbered, so that a SUB sees what it has lost; connections, messages, calls and
what waits for those who do not read are bounded, and what is refused is counted.
Not here: broadcasts, tunnels, confirmed events, headers.  PUSH is told nothing: what it may not publish is in the log.
"""

from iris.doors.nng.counters import NngStatistics
from iris.doors.nng.door import NngDoor, open_nng_door

__all__ = ("NngDoor", "NngStatistics", "open_nng_door")
