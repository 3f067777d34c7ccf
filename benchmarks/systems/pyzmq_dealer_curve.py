"""pyzmq DEALER and ROUTER, encrypted with CURVE."""

from __future__ import annotations

from benchmarks.system import System
from benchmarks.systems.pyzmq_curve import curve
from benchmarks.systems.pyzmq_dealer import roles

SYSTEM = System(
    name="pyzmq DEALER CURVE",
    package="pyzmq",
    encrypted=True,
    lacks=("retries", "balance", "discovery", "event loop"),
    module="zmq",
    roles=roles(curve),
)
