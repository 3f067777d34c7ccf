"""The door for HTTP: requests, surveys and events by plain HTTP, tunnels by WebSocket.

::

    curl -H "Authorization: Bearer $TOKEN" --json '"world"' http://127.0.0.1:8080/request/greeters

Promises: a request that its client gives up is stopped at the member; a client that does not read loses events of its
own, which are told; connections, bodies, heads of requests and streams are bounded.  Not here: HTTP/2, cookies.
"""

from iris.doors.http.limits import HttpLimits, HttpStatistics
from iris.doors.http.server import HttpDoor, open_http_door

__all__ = ("HttpDoor", "HttpLimits", "HttpStatistics", "open_http_door")
