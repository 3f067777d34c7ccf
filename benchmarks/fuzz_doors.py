"""Hostile bytes at the doors, while others are served: ``python -m benchmarks.fuzz_doors``.

A door for HTTP and one for MQTT run in a process of their own.  Connections with and without a token send packets that
are well formed, cut off, changed at random or made up, as fast as the doors take them.  A third process is an honest
client meanwhile: it asks by HTTP, over a new connection and over one that it keeps, and pings by MQTT.

A failure is: an error in the log of the door, a door that has ended, memory that has grown by more than 64 MiB, an
honest call without its answer, or one in a hundred of them above 50 ms (``--limit``; a machine that is busy with other
things needs more).  A run is repeated with its ``--seed``, but for what the two sides do at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import iris
import iris.aio
from iris.doors import grant
from iris.doors.clients import Clients
from iris.doors.http import open_http_door
from iris.doors.mqtt import open_mqtt_door

MEMORY_LIMIT: Final = 64 << 20

CONNECTIONS: Final = 16
"""Of the fuzzer, at a time."""

_QUIET: Final = 5.0
"""Seconds for which honest calls are timed while nobody attacks."""

_GOOD: Final = 0.9
"""Of the packets: left as they are, so that a connection has more than one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one run."""

    packets: int
    seconds: float
    grown: int
    latencies: dict[str, list[float]]
    """Seconds of the honest calls, by kind."""
    log: str

    def percentile(self, kind: str, part: float) -> float:
        """Return the latency that this part of the calls of a kind stays below."""
        ordered = sorted(self.latencies[kind])
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


# -- packets -------------------------------------------------------------------------------------------------


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _number(len(body)) + body


def _pairs(dice: random.Random, most: int) -> bytes:
    pair = b"\x26" + _text(dice.randbytes(2).hex().encode()) + _text(b"v" * dice.randrange(8))
    return pair * dice.randrange(most)


def connect(dice: random.Random, token: str, pairs: int) -> bytes:
    """Return a CONNECT of MQTT 5, or one of 3.1.1."""
    client_id, login = _text(b"c%d" % dice.randrange(1000)), _text(b"u") + _text(token.encode())
    if dice.random() < 0.3:
        return _frame(0x10, _text(b"MQTT") + b"\x04\xc2\x00\x3c" + client_id + login)
    properties = _pairs(dice, pairs)
    return _frame(
        0x10, _text(b"MQTT") + b"\x05\xc2\x00\x3c" + _number(len(properties)) + properties + client_id + login
    )


def mqtt_packet(dice: random.Random) -> bytes:
    """Return what a client of MQTT 5 may say, and some of what it may not."""
    topic = _text(b"/".join(dice.choice((b"a", b"b", b"c.d", b"", b"+")) for _ in range(dice.randrange(1, 4))))
    match dice.randrange(6):
        case 0:
            return b"\xc0\x00"
        case 1:
            filters = b"".join(topic + bytes((dice.choice((0, 1, 2, 4)),)) for _ in range(dice.randrange(1, 40)))
            return _frame(0x82, dice.randbytes(2) + b"\x00" + filters)
        case 2:
            return _frame(0xA2, b"\x00\x01\x00" + topic * dice.randrange(1, 40))
        case 3:
            properties = _pairs(dice, 20)
            return _frame(0x30, topic + _number(len(properties)) + properties + dice.randbytes(dice.randrange(200)))
        case 4:
            return _frame(0x30, topic + b"\x13\x03" + _text(b"application/json") + b'{"a":[1,2,{}]}')
        case _:
            return _frame(0x31, topic + b"\x00" + dice.randbytes(dice.randrange(50)))


def http_packet(dice: random.Random, token: str) -> bytes:
    """Return a request, and now and then one that is none."""
    path = dice.choice(
        ("/request/greeters", "/publish/a.b", "/subscribe?x=1", "/survey/nobody?timeout=0", "?x", "/%ff")
    )
    body = dice.choice((b"", b"x", b'{"a":1}', b"[" * 50, dice.randbytes(100)))
    lines = [f"{dice.choice(('POST', 'POST', 'GET', 'OPTIONS'))} {path} HTTP/1.1", "host: door"]
    if token:
        lines.append(f"authorization: Bearer {token}")
    lines += [f"x-{number}: y" for number in range(dice.choice((0, 1, 2, 100)))]
    lines.append(dice.choice(("content-type: application/json", "content-type: text/plain", "accept: */*")))
    if dice.random() < 0.3:
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        return "\r\n".join((*lines, "transfer-encoding: chunked", "", "")).encode() + chunked
    return "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body


def changed(dice: random.Random, packet: bytes) -> bytes:
    """Return a packet with some damage."""
    data = bytearray(packet)
    match dice.randrange(5):
        case 0:
            for _ in range(dice.randrange(1, 5)):
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        case 1:
            del data[dice.randrange(len(data)) :]
        case 2:
            at = dice.randrange(len(data))
            data[at:at] = dice.randbytes(dice.randrange(1, 30))
        case 3:
            at = dice.randrange(len(data))
            data[at : at + dice.randrange(1, 10)] = dice.choice((b"\n", b"\r\n ", b"\0", b"\xff\xff\xff\x7f", b""))
        case _:
            return dice.randbytes(dice.randrange(1, 300))
    return bytes(data)


# -- the three processes -------------------------------------------------------------------------------------


async def _serve() -> None:
    """Be the doors, and a member behind them, until standard input ends."""
    home = Path(os.environ["IRIS_HOME"])
    service = iris.Service("greeters")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    everything: dict[str, Any] = {"call": (">",), "publish": (">",), "subscribe": (">",)}
    tokens = {name: grant(home / "tokens", name, **everything) for name in ("fuzzer", "honest")}
    clients = Clients(home / "tokens", time.time)
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    async with (
        iris.aio.open_node("greeters") as member,
        member.join("greeters", service),
        iris.aio.open_node("door") as node,
        open_http_door(node, clients, sockets=sockets[:1]),
        open_mqtt_door(node, clients, sockets=sockets[1:]),
    ):
        await node.wait_for("greeters")
        sys.stdout.write(json.dumps({"ports": ports, "tokens": tokens}) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


def _probe(ports: list[int], token: str) -> None:
    """Be an honest client until standard input ends; then write how long each call took."""
    took: dict[str, list[float]] = {"http": [], "http, a new connection": [], "mqtt": []}
    headers = {"authorization": f"Bearer {token}"}

    def ask(connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/request/greeters", b"x", headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"x"), answer.status

    def ask_anew() -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", ports[0], timeout=30)) as fresh:
            ask(fresh)

    kept = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=30)
    pinging = socket.create_connection(("127.0.0.1", ports[1]), timeout=30)
    pinging.sendall(
        _frame(0x10, _text(b"MQTT") + b"\x04\xc2\x00\x00" + _text(b"me") + _text(b"u") + _text(token.encode()))
    )
    assert pinging.recv(4) == b"\x20\x02\x00\x00"

    def ping() -> None:
        pinging.sendall(b"\xc0\x00")
        assert pinging.recv(2) == b"\xd0\x00"

    works: dict[str, Callable[[], None]] = {
        "http": lambda: ask(kept), "http, a new connection": ask_anew, "mqtt": ping,
    }  # fmt: skip
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    os.set_blocking(0, False)
    while sys.stdin.buffer.read(1) is None:
        for kind, work in works.items():
            began = time.perf_counter()
            work()
            took[kind].append(time.perf_counter() - began)
            time.sleep(0.01)
    sys.stdout.write(json.dumps(took))


async def _fuzz(ports: list[int], token: str, packets: int, seed: int) -> None:
    left = packets

    async def attack(dice: random.Random) -> None:
        nonlocal left
        while left > 0:
            by_http = dice.random() < 0.3
            sent: list[bytes] = []
            if by_http:
                sent = [http_packet(dice, token) for _ in range(dice.randrange(1, 8) if token else 1)]
            else:
                sent.append(connect(dice, token, 20 if token else 4000))
                if token:
                    sent += [mqtt_packet(dice) for _ in range(dice.randrange(60))]
            said = [one if dice.random() < _GOOD else changed(dice, one) for one in sent]
            left -= len(said)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection("127.0.0.1", ports[0 if by_http else 1])
                    try:
                        writer.write(b"".join(said))
                        writer.write_eof()
                        while await reader.read(65_536):
                            pass
                    finally:
                        writer.close()

    async with asyncio.TaskGroup() as tasks:
        for number in range(CONNECTIONS):
            tasks.create_task(attack(random.Random(f"{seed} {number}")))


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) * 1024


@contextlib.contextmanager
def _child(environment: dict[str, str], *arguments: str, stderr: Any = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.fuzz_doors", *arguments]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def fuzz(packets: int, *, with_token: bool, seed: int) -> Outcome:
    """Send so many packets to two doors, and return what became of it; of none it is what the machine takes itself."""
    with tempfile.TemporaryDirectory(prefix="iris-fuzz-") as home, tempfile.TemporaryFile("w+") as log:
        run = Path(home) / "run"
        run.mkdir(mode=0o700)
        environment = {**os.environ, "IRIS_HOME": home, "XDG_RUNTIME_DIR": str(run)}
        with _child(environment, "--serve", stderr=log) as doors:
            assert doors.stdout is not None
            line = doors.stdout.readline()
            if not line:
                log.seek(0)
                raise RuntimeError(f"the doors have not opened: {log.read()}")
            told = json.loads(line)
            ports, tokens = told["ports"], told["tokens"]
            asyncio.run(_fuzz(ports, tokens["fuzzer"], 500, seed))  # what is built once is there
            before = _memory(doors.pid)
            with _child(environment, "--probe", json.dumps([ports, tokens["honest"]])) as probe:
                assert probe.stdout is not None
                assert probe.stdout.readline() == "ready\n"
                began = time.perf_counter()
                if packets:
                    asyncio.run(_fuzz(ports, tokens["fuzzer"] if with_token else "", packets, seed))
                else:
                    time.sleep(_QUIET)
                seconds = time.perf_counter() - began
                answer, _ = probe.communicate()
            grown = _memory(doors.pid) - before
            assert doors.poll() is None, "the doors have ended"
        log.seek(0)
        lines = [line for line in log if "Traceback" in line or "failed" in line or "ERROR" in line]
        return Outcome(packets=packets, seconds=seconds, grown=grown, latencies=json.loads(answer), log="".join(lines))


def main() -> int:
    """Run it by the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=500_000, help="with a token, and as many without")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.05, help="seconds that 99 of 100 honest calls stay below")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve())
        return 0
    if given.probe:
        _probe(*json.loads(given.probe))
        return 0
    failed = False
    for title, packets, with_token in (
        ("nobody attacks", 0, False),
        ("without a token", given.packets, False),
        ("with a token", given.packets, True),
    ):
        outcome = fuzz(packets, with_token=with_token, seed=given.seed)
        sys.stdout.write(
            f"{title}: {outcome.packets} packets in {outcome.seconds:.0f} s, memory {outcome.grown / 2**20:+.1f} MiB\n"
        )
        for kind, took in outcome.latencies.items():
            p50, p99 = (outcome.percentile(kind, part) * 1000 for part in (0.5, 0.99))
            sys.stdout.write(f"  {kind}: {len(took)} calls, p50 {p50:.1f} ms, p99 {p99:.1f} ms\n")
            failed = failed or (packets > 0 and p99 > given.limit * 1000)
        sys.stdout.write(outcome.log)
        sys.stdout.flush()
        failed = failed or bool(outcome.log) or outcome.grown > MEMORY_LIMIT
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
