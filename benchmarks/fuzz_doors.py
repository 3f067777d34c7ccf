"""Hostile bytes at the doors, while others are served: ``python -m benchmarks.fuzz_doors``.

Doors for HTTP, MQTT and nng run in a process of their own.  One after the other is attacked, with
a token and without: connections send packets that are well formed, cut off, changed at random or made up, as fast as
the door takes them.  A third process is an honest client meanwhile: it asks by HTTP, over a new connection and
over one that it keeps, pings by MQTT, and asks by nng, each of them 25 times a second.  An attack goes on for 12 s at
least: an honest call in a hundred is one of 300.

nng knows no tokens: all who connect there are one client, and share its time.  Who has none there speaks no nng.

A failure is: an error in the log of the doors, doors that have ended, memory that has grown by more than 64 MiB, an
honest call without its answer, or one in a hundred of them above 50 ms (``--limit``; not those by nng while nng is
attacked with a token).  A machine that is busy with other things needs more: for it there is what the doors' process
has used of a processor while an honest call waited, and with ``--steps`` the longest step of its event loop, by the
same clock.  A run is repeated with its ``--seed``, but for what the two sides do at the same time.

A million packets take about ten minutes; ``--packets 100000`` is a tenth of everything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import iris
import iris.aio
from iris.doors import grant
from iris.doors.clients import Clients
from iris.doors.http import open_http_door
from iris.doors.mqtt import open_mqtt_door
from iris.doors.nng import open_nng_door

MEMORY_LIMIT: Final = 64 << 20

CONNECTIONS: Final = 16
"""Connections of the fuzzer at a time."""

_LASTING: Final = 12.0
"""Seconds for which honest calls are timed at least, with as many packets as that takes."""

_PERIOD: Final = 0.04
"""Seconds from one honest call of a kind to the next, or until it has its answer: 300 calls in that time."""

_GOOD: Final = 0.9
"""Share of the packets that stay unchanged, so that a connection has more than one."""

_PARTS: Final = {
    ("http", False): 2, ("mqtt", False): 2, ("nng", False): 1, ("http", True): 2, ("mqtt", True): 2, ("nng", True): 1,
}  # fmt: skip
"""Weights of the packets by door, with a token or without one."""

_LONG: Final = 0.005
"""Seconds of a processor from which on a step of the event loop is counted as a long one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one run."""

    packets: int
    seconds: float
    grown: int
    used: float
    """Seconds that the doors have used of a processor."""
    latencies: dict[str, list[float]]
    """Seconds of the honest calls, by kind."""
    meanwhile: dict[str, list[float]]
    """Seconds of a processor that the doors have used during each of them."""
    steps: str
    """Steps of the doors' event loop, if they were measured."""
    log: str


def percentile(values: list[float], part: float) -> float:
    """Return what this part of some values stays below."""
    ordered = sorted(values)
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


_NNG_PROTOCOLS: Final = {"req": 0x30, "surveyor": 0x62, "push": 0x50, "sub": 0x21}


def nng_hello(protocol: str) -> bytes:
    """Return what a program of nng says first."""
    return b"\0SP\0" + _NNG_PROTOCOLS[protocol].to_bytes(2, "big") + b"\0\0"


def nng_packet(dice: random.Random, protocol: str) -> bytes:
    """Return a message of a program of nng, framed for a Unix socket; those of SUB say nothing."""
    first = dice.choice(
        (b"greeters", b"greeters text", b"nobody json timeout=0", b"a.b json key=1", b"a.b", b"", b"x " * 900, b"\xff",
         b"greeters wait=1e999", b"a.b text retain=maybe")
    )  # fmt: skip
    body = dice.choice((b"", b"x", b'{"a":1}', b"[" * 50, dice.randbytes(100)))
    number = (0x80000000 | dice.getrandbits(31)).to_bytes(4, "big") if protocol in {"req", "surveyor"} else b""
    message = number + first + b"\n" + body
    return b"\1" + len(message).to_bytes(8, "big") + message


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


async def _serve(steps: _Steps) -> None:
    """Be the doors, and a member behind them, until standard input ends; its first line says that it begins."""
    home = Path(os.environ["IRIS_HOME"])
    service = iris.Service("greeters")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    everything: dict[str, Any] = {"call": (">",), "publish": (">",), "subscribe": (">",)}
    tokens = {name: grant(home / "tokens", name, **everything) for name in ("fuzzer", "honest", "programs")}
    clients = Clients(home / "tokens", time.time)
    sockets = [socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2)]
    ports = [one.getsockname()[1] for one in sockets]
    async with (
        iris.aio.open_node("greeters") as member,
        member.join("greeters", service),
        iris.aio.open_node("door") as node,
        open_http_door(node, clients, sockets=sockets[:1]),
        open_mqtt_door(node, clients, sockets=sockets[1:]),
        open_nng_door(node, clients, f"ipc://{home}/nng", "programs"),
    ):
        await node.wait_for("greeters")
        gc.collect()
        gc.freeze()  # as ``iris door`` does
        sys.stdout.write(json.dumps({"places": [*ports, f"{home}/nng"], "tokens": tokens}) + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        steps.begin()
        await asyncio.to_thread(sys.stdin.read)


class _Steps:
    """Measures each step of an event loop."""

    def __init__(self) -> None:
        self.count = self.long = 0
        self.longest: list[tuple[float, str]] = []

    def install(self) -> None:
        """Measure the steps of all event loops."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            self._add(time.thread_time() - began, handle)

        asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]

    def begin(self) -> None:
        """Count from now on: forget how the doors were opened."""
        self.count = self.long = 0
        self.longest = []

    def _add(self, took: float, handle: asyncio.Handle) -> None:
        self.count += 1
        self.long += took > _LONG
        if len(self.longest) < 3 or took > self.longest[-1][0]:
            self.longest = sorted([*self.longest, (took, repr(handle))], reverse=True)[:3]

    def __str__(self) -> str:
        head = f"{self.count} steps, {self.long} of them above {_LONG * 1000:g} ms; the longest:"
        return "\n    ".join([head, *(f"{took * 1000:.1f} ms {what:.200}" for took, what in self.longest)])


def _used(pid: int) -> float:
    """Return the seconds that a process has used of a processor: by its clock, see clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


def _probe(places: list[Any], token: str, doors: int) -> None:
    """Be an honest client until standard input ends; then write how long each call took, and what the doors used."""
    took: dict[str, list[tuple[float, float]]] = {"http": [], "http, a new connection": [], "mqtt": [], "nng": []}
    headers = {"authorization": f"Bearer {token}"}

    def ask(connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/request/greeters", b"x", headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"x"), answer.status

    def ask_anew() -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", places[0], timeout=30)) as fresh:
            ask(fresh)

    kept = http.client.HTTPConnection("127.0.0.1", places[0], timeout=30)
    pinging = socket.create_connection(("127.0.0.1", places[1]), timeout=30)
    pinging.sendall(
        _frame(0x10, _text(b"MQTT") + b"\x04\xc2\x00\x00" + _text(b"me") + _text(b"u") + _text(token.encode()))
    )
    assert pinging.recv(4) == b"\x20\x02\x00\x00"

    def ping() -> None:
        pinging.sendall(b"\xc0\x00")
        assert pinging.recv(2) == b"\xd0\x00"

    asking = socket.socket(socket.AF_UNIX)
    asking.settimeout(30)
    asking.connect(f"{places[2]}.req")
    asking.sendall(nng_hello("req"))
    assert len(asking.recv(8, socket.MSG_WAITALL)) == 8

    def ask_by_nng() -> None:
        message = b"\x80\0\0\1greeters\nx"
        asking.sendall(b"\1" + len(message).to_bytes(8, "big") + message)
        size = int.from_bytes(asking.recv(9, socket.MSG_WAITALL)[1:], "big")
        answer = asking.recv(size, socket.MSG_WAITALL)
        assert answer == b"\x80\0\0\x01200 bytes\nx", answer

    works: dict[str, Callable[[], None]] = {
        "http": lambda: ask(kept), "http, a new connection": ask_anew, "mqtt": ping, "nng": ask_by_nng,
    }  # fmt: skip
    for work in works.values():
        work()
    ended = threading.Event()

    def go_on(kind: str) -> None:
        due = time.perf_counter()
        while not ended.wait(due - time.perf_counter()):
            used, began = _used(doors), time.perf_counter()
            works[kind]()
            now = time.perf_counter()
            took[kind].append((now - began, _used(doors) - used))
            due = max(due + _PERIOD, now)

    with ThreadPoolExecutor() as threads:
        going = [threads.submit(go_on, kind) for kind in works]
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()
        ended.set()
    for one in going:
        one.result()
    sys.stdout.write(json.dumps(took))


def _said(dice: random.Random, door: str, token: str) -> tuple[bytes, list[bytes], str]:
    """Return what one connection says: what comes first and unchanged, the packets, and the protocol of nng."""
    match door:
        case "http":
            return b"", [http_packet(dice, token) for _ in range(dice.randrange(1, 8) if token else 1)], ""
        case "mqtt":
            sent = [connect(dice, token, 20 if token else 4000)]
            return b"", sent + ([mqtt_packet(dice) for _ in range(dice.randrange(60))] if token else []), ""
        case _:
            protocol = dice.choice(("req", "surveyor", "push", "push", "sub"))
            if not token:
                return b"", [dice.choice((nng_hello(protocol), b"")) + dice.randbytes(dice.randrange(1, 30))], protocol
            return nng_hello(protocol), [nng_packet(dice, protocol) for _ in range(dice.randrange(1, 20))], protocol


async def _fuzz(door: str, places: list[Any], token: str, packets: int, seed: int, lasting: float = 0.0) -> int:
    """Send packets for so many seconds, and so many packets, at least; return how many they were."""
    count, until = 0, time.perf_counter() + lasting

    async def attack(dice: random.Random) -> None:
        nonlocal count
        while count < packets or time.perf_counter() < until:
            hello, sent, protocol = _said(dice, door, token)
            said = [one if dice.random() < _GOOD else changed(dice, one) for one in sent]
            count += len(said)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(10):
                    if protocol:
                        reader, writer = await asyncio.open_unix_connection(f"{places[2]}.{protocol}")
                    else:
                        reader, writer = await asyncio.open_connection("127.0.0.1", places[0 if door == "http" else 1])
                    try:
                        writer.write(hello + b"".join(said))
                        writer.write_eof()
                        while await reader.read(65_536):
                            pass
                    finally:
                        writer.close()

    async with asyncio.TaskGroup() as tasks:
        for number in range(CONNECTIONS):
            tasks.create_task(attack(random.Random(f"{seed} {number}")))
    return count


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


def fuzz(door: str, packets: int, *, with_token: bool, seed: int, steps: bool = False) -> Outcome:
    """Send so many packets to a door, or more, and return what became of it; of none it is what honest calls take."""
    with tempfile.TemporaryDirectory(prefix="iris-fuzz-") as home, tempfile.TemporaryFile("w+") as log:
        run = Path(home) / "run"
        run.mkdir(mode=0o700)
        environment = {**os.environ, "IRIS_HOME": home, "XDG_RUNTIME_DIR": str(run)}
        with _child(environment, "--serve", *(["--steps"] if steps else []), stderr=log) as doors:
            assert doors.stdout is not None
            line = doors.stdout.readline()
            if not line:
                log.seek(0)
                raise RuntimeError(f"the doors have not opened: {log.read()}")
            told = json.loads(line)
            places, tokens = told["places"], told["tokens"]
            for one in ("http", "mqtt", "nng"):  # what is built once is there
                asyncio.run(_fuzz(one, places, tokens["fuzzer"], 200, seed))
            before = _memory(doors.pid)
            with _child(environment, "--probe", json.dumps([places, tokens["honest"], doors.pid])) as probe:
                assert probe.stdout is not None
                assert probe.stdout.readline() == "ready\n"
                assert doors.stdin is not None
                doors.stdin.write("begin\n")
                doors.stdin.flush()
                began, used = time.perf_counter(), _used(doors.pid)
                if packets:
                    token = tokens["fuzzer"] if with_token else ""
                    packets = asyncio.run(_fuzz(door, places, token, packets, seed, _LASTING))
                else:
                    time.sleep(_LASTING)
                seconds, used = time.perf_counter() - began, _used(doors.pid) - used
                answer, _ = probe.communicate()
            grown = _memory(doors.pid) - before
            assert doors.poll() is None, "the doors have ended"
            measured, _ = doors.communicate()
        log.seek(0)
        lines = [line for line in log if "Traceback" in line or "failed" in line or "ERROR" in line]
        calls = json.loads(answer).items()
        return Outcome(
            packets=packets,
            seconds=seconds,
            grown=grown,
            used=used,
            latencies={kind: [took for took, _ in pairs] for kind, pairs in calls},
            meanwhile={kind: [spent for _, spent in pairs] for kind, pairs in calls},
            steps=measured,
            log="".join(lines),
        )


def _told(outcome: Outcome) -> str:
    """Return what there is to say of a run."""
    grown, used = f"memory {outcome.grown / 2**20:+.1f} MiB", f"{outcome.used:.1f} s of a processor"
    lines = [f"  {outcome.packets} packets in {outcome.seconds:.0f} s, {used}, {grown}"]
    for kind, took in outcome.latencies.items():
        p50, p99, used50, used99 = (
            percentile(values, part) * 1000 for values in (took, outcome.meanwhile[kind]) for part in (0.5, 0.99)
        )
        wall, spent = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", f"p50 {used50:.1f} ms, p99 {used99:.1f} ms"
        lines.append(f"  {kind}: {len(took)} calls, {wall}; the doors meanwhile: {spent}")
    return "\n".join([*lines, *([f"  {outcome.steps}"] if outcome.steps else [])]) + "\n" + outcome.log


def main() -> int:
    """Run it by the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=1_000_000, help="at all doors, with a token and without")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=0.05, help="seconds that 99 of 100 honest calls stay below")
    parser.add_argument("--door", choices=("http", "mqtt", "nng"), help="only this one is attacked")
    parser.add_argument("--token", choices=("with", "without"), help="only so")
    parser.add_argument(
        "--steps", action="store_true", help="measure each step of the doors' event loop; it costs some"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        steps = _Steps()
        if given.steps:
            steps.install()
        asyncio.run(_serve(steps))
        sys.stdout.write(str(steps) if given.steps else "")
        return 0
    if given.probe:
        _probe(*json.loads(given.probe))
        return 0
    sys.stdout.write(f"nobody attacks:\n{_told(fuzz('', 0, with_token=False, seed=given.seed, steps=given.steps))}")
    failed = False
    for (door, with_token), part in _PARTS.items():
        if given.door not in (None, door) or given.token not in (None, "with" if with_token else "without"):
            continue
        packets = given.packets * part // sum(_PARTS.values())
        outcome = fuzz(door, packets, with_token=with_token, seed=given.seed, steps=given.steps)
        sys.stdout.write(f"{door}, {'with' if with_token else 'without'} a token:\n{_told(outcome)}")
        sys.stdout.flush()
        judged = [took for kind, took in outcome.latencies.items() if (door, with_token, kind) != ("nng", True, "nng")]
        failed = failed or any(percentile(took, 0.99) > given.limit for took in judged)
        failed = failed or bool(outcome.log) or outcome.grown > MEMORY_LIMIT
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
