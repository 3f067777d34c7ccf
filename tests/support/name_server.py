"""A name server on loopback, over UDP and TCP, with the answers that a test gives it."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
from dns.resolver import Resolver


class NameServer:
    """Answers for the names that it has, in the order in which it has their records.

    Attributes:
        records: records by name and type, as text.
        asked: what it was asked for, with the way by which it was.
        is_silent: it says nothing.
        rcode: the answer to every question, if it is not NOERROR.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.is_silent = False
        self.rcode = dns.rcode.NOERROR
        self.port = 0

    def resolver(self) -> Resolver:
        """Return a resolver that asks this server only."""
        made = Resolver(configure=False)
        made.nameservers, made.port = ["127.0.0.1"], self.port
        return made

    def answer(self, question: bytes, way: str, room: int) -> bytes | None:
        asked = dns.message.from_wire(question)
        (rrset,) = asked.question
        name, kind = rrset.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(rrset.rdtype)
        self.asked.append((way, name))
        if self.is_silent:
            return None
        made = dns.message.make_response(asked)
        records = self.records.get((name, kind), [])
        is_known = any(known == name for known, _ in self.records)
        made.set_rcode(self.rcode or (dns.rcode.NOERROR if is_known else dns.rcode.NXDOMAIN))
        if records and not self.rcode:
            made.answer.append(dns.rrset.from_text_list(rrset.name, 5, "IN", kind, records))
        wire = made.to_wire(max_size=65535)
        if len(wire) <= room:
            return wire
        made.answer.clear()
        made.flags |= dns.flags.TC
        return made.to_wire()


@contextmanager
def open_name_server() -> Iterator[NameServer]:
    """Serve on a free port until the end of the block."""
    server = NameServer()

    class OverUdp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, socket = self.request
            if (wire := server.answer(question, "udp", 1232)) is not None:
                socket.sendto(wire, self.client_address)

    class OverTcp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            (length,) = struct.unpack("!H", self.rfile.read(2))
            if (wire := server.answer(self.rfile.read(length), "tcp", 65535)) is not None:
                self.wfile.write(struct.pack("!H", len(wire)) + wire)

    with socketserver.TCPServer(("127.0.0.1", 0), OverTcp) as tcp:
        server.port = tcp.server_address[1]
        with socketserver.UDPServer(("127.0.0.1", server.port), OverUdp) as udp:
            threads = [threading.Thread(target=one.serve_forever, args=(0.02,)) for one in (tcp, udp)]
            for thread in threads:
                thread.start()
            try:
                yield server
            finally:
                for one in (tcp, udp):
                    one.shutdown()
                for thread in threads:
                    thread.join()
