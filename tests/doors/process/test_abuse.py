"""A door as a process: what it is killed under, and what it is asked too much of."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridges import BridgeProcess
from tests.support.command import PATIENCE, Terminal
from tests.support.door_process import ALL_RIGHTS, DoorProcess, token

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: apt install curl")
needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None, reason="Mosquitto's clients are not installed: apt install mosquitto-clients"
)


def curl(door: DoorProcess, secret: str, path: str, *options: str, given: bytes = b"") -> tuple[str, Any]:
    """Ask by curl, and return the status and what was answered."""
    done = subprocess.run(
        ["curl", "-sS", "-w", "%{stderr}%{http_code}", "-H", f"Authorization: Bearer {secret}", *options,
         door.url + path],
        input=given, capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.stderr.decode(), lines[0] if len(lines) == 1 else lines


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process have the files that a thousand connections are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this machine lets a process have {hard} files: 1,000 connections need more than 1,024")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def follow(door: DoorProcess, secret: str) -> socket.socket:
    """Open a stream of events, and read its head."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(PATIENCE)
    made.connect(("127.0.0.1", door.http))
    made.sendall(
        f"GET /subscribe?topic=orders.* HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n\r\n".encode()
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += made.recv(4096)
    assert head.startswith(b"HTTP/1.1 200"), head
    return made


@needs_curl
def test_curl_asks_surveys_publishes_and_follows(terminal: Terminal) -> None:
    secret = token(terminal, "web", *ALL_RIGHTS)
    with DoorProcess(terminal) as door:
        assert curl(door, secret, "/request/greeters", "--json", '"you"') == ("200", "hello you")
        status, (reply, last) = curl(door, secret, "/survey/greeters?timeout=5", "--json", "1")
        assert (status, reply["payload"], last["ended_by"]) == ("200", "hello 1", "all")
        with follow(door, secret) as stream, stream.makefile() as lines:
            assert curl(door, secret, "/publish/orders.tea", "--json", "7") == ("204", [])
            line = next(line for line in lines if line.startswith("data: "))
            assert json.loads(line[6:])["payload"] == 7
            terminal.run("keys", "withdraw", "tokens", "web")
            rest = lines.read()
        assert re.search(r'event: end\ndata: \{"status":401', rest)
        status, told = curl(door, secret, "/request/greeters", "--json", "1")
        assert (status, told["code"]) == ("401", "wrong_token")
        said = door.stop()
    assert secret not in said
    assert "status 401: 2" in said
    assert "answered 3" in said


@needs_curl
def test_a_huge_body_is_refused_before_it_is_read(terminal: Terminal, tmp_path: Path) -> None:
    secret = token(terminal, "web", *ALL_RIGHTS)
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    with DoorProcess(terminal) as door:
        assert curl(door, secret, "/request/greeters", "--json", "1")[0] == "200"
        before = door.memory()
        for more in ((), ("-H", "Transfer-Encoding: chunked")):
            status, told = curl(door, secret, "/request/greeters", *more, "-T", str(huge), "-X", "POST")
            assert (status[-3:], told["code"]) == ("413", "too_large")
        assert door.memory() - before < 16 << 20
        assert curl(door, secret, "/request/greeters", "--json", '"you"') == ("200", "hello you")


@needs_curl
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_idle_followers_are_small_and_disturb_nobody(terminal: Terminal, count: int) -> None:
    secrets = [token(terminal, f"idle{number}", *ALL_RIGHTS) for number in range(16)]  # 64 subscriptions for each
    secret = token(terminal, "web", *ALL_RIGHTS)
    with DoorProcess(terminal, "--max-connections", str(count + 1)) as door, contextlib.ExitStack() as stack:
        assert curl(door, secret, "/request/greeters", "--json", "1")[0] == "200"
        before = door.memory()
        streams = [stack.enter_context(follow(door, secrets[number % 16])) for number in range(count)]
        assert (door.memory() - before) / count < 100_000
        assert curl(door, secret, "/request/greeters", "--json", '"you"') == ("200", "hello you")
        with follow(door, secret):  # the last place
            status, told = curl(door, secret, "/request/greeters", "--json", "1")
            assert (status, told["code"]) == ("503", "too_many_connections")
        while curl(door, secret, "/publish/orders.tea", "--json", "7")[0] != "204":
            pass  # until the door has seen that the last one is gone
        for stream in streams:
            stream.recv(4096)


@needs_curl
def test_followers_that_do_not_read_cost_what_they_may_have_waiting(terminal: Terminal) -> None:
    secret = token(terminal, "web", *ALL_RIGHTS)
    with DoorProcess(terminal) as door, contextlib.ExitStack() as stack:
        assert curl(door, secret, "/request/greeters", "--json", "1")[0] == "200"
        before = door.memory()
        slow = [stack.enter_context(follow(door, secret)) for _ in range(20)]
        for _ in range(40):  # 20 MB for each
            told = curl(door, secret, "/publish/orders.tea", "--data-binary", "@-", given=bytes(500_000))
            assert told == ("204", [])
        assert door.memory() - before < len(slow) * (4 << 20)  # what may wait, and the event that is being written
        assert curl(door, secret, "/request/greeters", "--json", '"you"') == ("200", "hello you")


@needs_mosquitto
@pytest.mark.parametrize("version", ["311", "5"])
def test_a_door_killed_under_load_loses_nothing_that_it_acknowledged(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, terminal.environment[name])
    secret = token(terminal, "sensor", *ALL_RIGHTS)
    with BridgeProcess(tmp_path / "data"):
        door = DoorProcess(terminal)
        with door:
            options = ("-p", str(door.mqtt), "-u", "any", "-P", secret, "-V", version)
            with subprocess.Popen(
                ["mosquitto_sub", *options, "-t", "lines/#", "-q", "0", "-F", "%p"], stdout=subprocess.PIPE, text=True
            ) as follower, subprocess.Popen(
                ["mosquitto_pub", *options, "-i", "one", "-t", "lines/a", "-q", "1", "-l"],
                stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            ) as publisher:  # fmt: skip
                try:
                    assert publisher.stdin is not None
                    assert follower.stdout is not None
                    numbers = iter(range(1_000_000))
                    going = threading.Event()
                    going.set()

                    def publish() -> None:
                        assert publisher.stdin is not None
                        while going.is_set():
                            publisher.stdin.write(f"{next(numbers)}\n")
                            publisher.stdin.flush()
                            threading.Event().wait(0.002)

                    load = threading.Thread(target=publish)
                    load.start()
                    try:
                        before = [int(follower.stdout.readline()) for _ in range(50)]
                        door.kill()
                        door.start()
                        after = [int(follower.stdout.readline()) for _ in range(50)]  # it has connected again
                    finally:
                        going.clear()
                        load.join()
                    published = next(numbers)
                    publisher.stdin.close()
                    assert publisher.wait(PATIENCE) == 0
                finally:
                    follower.kill()
                    publisher.kill()
            assert max(before) < max(after)
        done = terminal.run("bridge", "replay", "--topic", "lines.a")
        assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    stored = {int(event["value"]) for event in events}
    assert stored == set(range(published))


@pytest.mark.parametrize("origin", ["https://SHOP.example", "https://shop.example/", "shop.example", "https://a b", ""])
def test_an_origin_that_no_browser_names_is_refused(terminal: Terminal, origin: str) -> None:
    token(terminal, "web", *ALL_RIGHTS)
    done = terminal.run("door", "--http", "127.0.0.1:0", "--tokens", "tokens", "--allow-origin", origin)
    assert done.returncode == 2
    assert b"is no origin as browsers name it: write https://HOST or https://HOST:PORT" in done.stderr


def test_a_door_takes_as_many_descriptors_as_it_may(terminal: Terminal) -> None:
    token(terminal, "web", *ALL_RIGHTS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))  # the door begins with that
    try:
        door = DoorProcess(terminal)
        door.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with contextlib.closing(door):
        assert door.process is not None
        limits = Path(f"/proc/{door.process.pid}/limits").read_text()
        (line,) = [line.split() for line in limits.splitlines() if line.startswith("Max open files")]
    assert line[3] == line[4]  # soft and hard
