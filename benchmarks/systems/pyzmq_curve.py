"""pyzmq without an event loop, encrypted with CURVE, ZeroMQ's own security."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.system import System
from benchmarks.systems.pyzmq_sync import ONE_AT_A_TIME, roles

if TYPE_CHECKING:
    import zmq

# Fixed keys, in ZeroMQ's text form: what they protect is a stream of zeros.
SERVER_SECRET = b"JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
SERVER_PUBLIC = b"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
CLIENT_SECRET = b"D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
CLIENT_PUBLIC = b"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
"""The four keys of the specification's test (RFC 26 and libzmq's documentation)."""


def curve(socket: zmq.Socket[bytes], listens: bool) -> None:
    """Set the keys of a socket."""
    if listens:
        socket.curve_server = True
        socket.curve_secretkey = SERVER_SECRET
        socket.curve_publickey = SERVER_PUBLIC
    else:
        socket.curve_serverkey = SERVER_PUBLIC
        socket.curve_secretkey = CLIENT_SECRET
        socket.curve_publickey = CLIENT_PUBLIC


SYSTEM = System(
    name="pyzmq CURVE",
    package="pyzmq",
    encrypted=True,
    lacks=("retries", "balance", "discovery", "event loop"),
    module="zmq",
    roles=roles(curve),
    without=ONE_AT_A_TIME,
)
