"""The JavaScript module serves a cluster, in a real browser and in Node.js: through a real door, and by the vectors."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

import iris.sync
from iris.doors.http.encoding import decoded, encoded
from iris.doors.values import packed
from tests.doors.process.test_browser import in_node, node_command, run_in_node
from tests.support.browser import in_browser, open_page
from tests.support.command import PATIENCE, Terminal
from tests.support.door_process import DoorProcess, files, token

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "clients" / "serve_vectors.json").read_text())

SERVE = """
    const { Door, IrisError } = await import(`${url}/iris.js`);
    const door = new Door(url, token);
    const stop = new AbortController();
    const told = { broadcasts: [], stopped: 0 };
    const never = (payload, { signal }) => new Promise((_, reject) => {
      signal.addEventListener("abort", () => { told.stopped += 1; reject(signal.reason); });
    });
    const request = {
      "": (payload) => payload,
      fail: () => { throw new IrisError({ status: 502, code: "no-tea", detail: "there is none" }); },
      large: (size) => new Uint8Array(size),
      about: (_, { sender, headers }) => ({ sender, headers }),
      never,
      stop: () => { setTimeout(() => stop.abort(), 0); return "stopping"; },
    };
    const mirror = async (tunnel) => {
      for await (const payload of tunnel) await tunnel.send(payload);
      told.mirrored = true;
    };
    const broadcast = (payload) => { told.broadcasts.push(payload instanceof Uint8Array ? [...payload] : payload); };
    const handlers = { request, broadcast, tunnel: { "": mirror } };
"""


@contextmanager
def node_of(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Generator[iris.sync.Node]:
    for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, terminal.environment[name])
    with iris.sync.open_node("shop") as node:
        yield node


def ask_all(node: iris.sync.Node) -> None:
    """Do with the program what callers do, and have it drain in the end."""
    node.wait_for("orders", timeout=PATIENCE)

    def ask(payload: object, **options: Any) -> object:
        return node.request("orders", payload, timeout=PATIENCE, **options)

    assert ask({"tea": [1, None, "ü"]}) == {"tea": [1, None, "ü"]}
    assert ask(b"\n\x00") == b"\n\x00"
    assert ask(None) is None
    assert ask(None, operation="about", headers={"trace": "7"}) == {"sender": "shop", "headers": {"trace": "7"}}
    for operation, code in (("fail", "no-tea"), ("other", "no_such_operation")):
        with pytest.raises(iris.RemoteError) as caught:
            ask(1, operation=operation)
        assert caught.value.code == code
    with pytest.raises(iris.RemoteError) as caught:
        ask(2_000_000, operation="large")
    assert caught.value.code == "too_large"
    with pytest.raises(iris.RequestTimeout):
        node.request("orders", 1, operation="never", timeout=0.3)
    node.broadcast("orders", "all")
    node.broadcast("orders", b"\x01")
    with node.open_tunnel("orders", timeout=PATIENCE) as tunnel:
        for number in range(100):
            payload = number if number % 2 else bytes([number])
            tunnel.send(payload)
            assert tunnel.receive() == payload
        tunnel.send_eof()
        assert list(tunnel) == []
    assert ask(None, operation="stop") == "stopping"


EXPECTED = {"broadcasts": ["all", [1]], "stopped": 1, "mirrored": True}


@in_node
def test_a_program_of_node_serves(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = token(terminal, "node", "--serve", "orders")
    body = f"{SERVE} await door.serve('orders', handlers, {{ signal: stop.signal }}); return told;"
    with DoorProcess(terminal) as door, node_of(terminal, monkeypatch) as node:
        said: list[object] = []
        thread = threading.Thread(target=lambda: said.append(run_in_node(door.url, secret, body, tmp_path)))
        thread.start()
        try:
            ask_all(node)
        finally:
            thread.join(PATIENCE)
        assert said == [EXPECTED]


@in_browser
def test_a_page_serves_and_comes_back_to_a_door_that_was_killed(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = token(terminal, "page", "--serve", "orders")
    (tmp_path / "index.html").write_text("<!doctype html><title>Serve</title>")
    with files(tmp_path) as origin, node_of(terminal, monkeypatch) as node:
        door = DoorProcess(terminal, "--allow-origin", origin)
        with door, open_page(f"{origin}/index.html") as page:
            known = f"const url = {json.dumps(door.url)}, token = {json.dumps(secret)};"
            serve = "door.serve('orders', handlers, { signal: stop.signal }).then(() => (window.told = told));"
            page.run(f"{known} {SERVE} window.told = null; {serve}")
            node.wait_for("orders", timeout=PATIENCE)
            door.kill()
            door.start()
            options = iris.RequestOptions(idempotent=True)
            assert node.request("orders", 1, timeout=PATIENCE, wait=PATIENCE, options=options) == 1
            ask_all(node)
            page.wait_for("told !== null")
            assert page.run("return told") == EXPECTED


@in_node
def test_who_may_not_serve_learns_why(terminal: Terminal, tmp_path: Path) -> None:
    secret = token(terminal, "node", "--serve", "orders")
    body = """
        const { Door } = await import(`${url}/iris.js`);
        const why = async (secret, cluster) => {
          try { await new Door(url, secret).serve(cluster, {}); } catch (error) { return [error.status, error.code]; }
        };
        return [await why(token, "others"), await why("wrong", "orders")];
    """
    with DoorProcess(terminal) as door:
        assert run_in_node(door.url, secret, body, tmp_path) == [[403, "not_allowed"], [401, "wrong_token"]]


def test_the_door_reads_and_writes_messages_as_the_vectors_say() -> None:
    for vector in VECTORS["messages"]:
        binary = base64.b64decode(vector["binary"]) if "binary" in vector else None
        head, payload, _ = decoded(vector.get("text"), binary)
        assert {name: value for name, value in head.items() if name not in ("payload", "encoding")} == vector["head"]
        if "payload" in vector:
            assert payload == vector["payload"]
        elif "bytes" in vector:
            assert payload == base64.b64decode(vector["bytes"])
        elif "msgpack" in vector:
            assert packed(payload) == base64.b64decode(vector["msgpack"])
        again = decoded(*_as_pair(encoded(vector["head"], payload)))
        assert again[1] == payload


def _as_pair(data: str | bytes) -> tuple[str | None, bytes | None]:
    return (data, None) if isinstance(data, str) else (None, data)


async def _play(socket: ServerConnection, steps: list[dict[str, Any]]) -> None:
    await socket.send(json.dumps(VECTORS["ready"]))
    for step in steps:
        given = base64.b64decode(step["bytes"]) if "bytes" in step else None
        if "door" in step:
            await socket.send(encoded(step["door"]) if given is None else encoded(step["door"], given))
            continue
        wanted = step["program"]
        while True:
            async with asyncio.timeout(PATIENCE):
                message = await socket.recv()
            head, payload, _ = decoded(*_as_pair(message))
            if head["type"] != "credit" or wanted["type"] == "credit":
                break
        assert wanted.items() <= {**head, "payload": payload}.items(), step
        assert given is None or payload == given


@in_node
def test_a_program_of_node_does_what_the_vectors_say(tmp_path: Path) -> None:
    played: list[str] = []
    command = node_command()

    async def main() -> None:
        done = asyncio.Event()

        async def door(socket: ServerConnection) -> None:
            conversation = VECTORS["conversations"][len(played)]
            await _play(socket, conversation["steps"])
            played.append(conversation["name"])
            if len(played) == len(VECTORS["conversations"]):
                done.set()
            await socket.close(1011)

        async with serve(door, "127.0.0.1", 0, subprotocols=["iris.serve.1"]) as server:  # type: ignore[list-item]
            port = next(iter(server.sockets)).getsockname()[1]
            body = f"{SERVE} setTimeout(() => {{}}, 1e6); await door.serve('orders', handlers, {{ capacity: 4 }});"
            (tmp_path / "iris.mjs").write_bytes((ROOT / "iris" / "doors" / "http" / "iris.js").read_bytes())
            program = body.replace("await import(`${url}/iris.js`)", 'await import("./iris.mjs")')
            (tmp_path / "program.mjs").write_text(f"const url = 'http://127.0.0.1:{port}', token = 'x';\n{program}")
            node = await asyncio.create_subprocess_exec(*command, "program.mjs", cwd=tmp_path)
            try:
                async with asyncio.timeout(PATIENCE):
                    await done.wait()
            finally:
                node.kill()
                await node.wait()

    asyncio.run(main())
    assert played == [one["name"] for one in VECTORS["conversations"]]
    assert shutil.which("node")
