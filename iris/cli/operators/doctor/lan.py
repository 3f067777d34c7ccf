"""Multicast DNS: whether this machine's announcements get out to its local network and back."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

import trio

from iris.cli.operators.doctor.findings import Diagnosis, ok, warning

_GROUP: Final = "224.0.0.251"
_PORT: Final = 5353
_PATIENCE: Final = 1.0
"""Seconds in which a datagram comes back from this machine's own network stack."""

_QUESTION: Final = struct.pack("!6H", 0, 0, 1, 0, 0, 0) + b"\x05_iris\x04_udp\x05local\x00" + struct.pack("!HH", 12, 1)
"""A query of RFC 6762 for pointers of a type that nobody has, so that nobody answers."""


async def examine_multicast(addresses: list[str], remedy: str) -> Diagnosis:
    """Send a question to each local network, and see whether this machine's own socket gets it.

    Args:
        addresses: IPv4 addresses of this machine, one for each network.
        remedy: lets multicast DNS in.
    """
    if not addresses:
        cause = (
            "this node listens at no IPv4 address but loopback: nodes of other machines do not find it by multicast DNS"
        )
        return warning("lan-alone", cause, "iris doctor --listen tcp://HOST:PORT")
    deaf: list[str] = []
    for address in addresses:
        try:
            received = await _hears_itself(address)
        except OSError as error:
            return warning("lan-blocked", f"multicast DNS cannot be used at {address}: {error}", "ip maddress")
        if not received:
            deaf.append(address)
    if deaf:
        cause = f"multicast DNS does not pass at {', '.join(deaf)}: nodes there are found by seeds only"
        return warning("lan-blocked", cause, remedy)
    return ok("lan-ok", f"multicast DNS passes at {', '.join(addresses)}")


async def _hears_itself(address: str) -> bool:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(AttributeError, OSError):  # where other programs share the port by it
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        await one.bind((_GROUP, _PORT))
        place = socket.inet_aton(address)
        one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(_GROUP) + place)
        one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, place)
        one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        await one.sendto(_QUESTION, (_GROUP, _PORT))
        with trio.move_on_after(_PATIENCE):
            while (await one.recvfrom(9000))[0] != _QUESTION:
                pass
            return True
    return False
