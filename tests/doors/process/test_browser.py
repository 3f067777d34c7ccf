"""The JavaScript module, in a real browser and in Node.js, through a real door."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from docs.pages import blocks
from tests.support.browser import in_browser, open_page
from tests.support.command import PATIENCE, Terminal, open_terminal
from tests.support.door_process import ALL_RIGHTS, DoorProcess, files, token

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "examples" / "doors"
MODULE = ROOT / "iris" / "doors" / "http" / "iris.js"

in_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed: apt install nodejs")

CHECKS = """
    const { Door, IrisError, Packed } = await import(`${url}/iris.js`);
    const door = new Door(url, token);
    const told = {};
    told.request = await door.request("greeters", "world");
    const packed = await door.request("greeters", new Uint8Array([7]), { operation: "bytes" });
    told.bytes = packed instanceof Packed ? [...packed.bytes] : null;
    told.headers = await door.request("greeters", null, { operation: "headers", headers: { Trace: "7" } });
    told.large = (await door.request("greeters", 100000, { operation: "large" })).length;
    told.survey = [];
    for await (const one of door.survey("greeters", "all")) told.survey.push(one.payload ?? one.ended_by);
    await door.broadcast("greeters", 1);
    const failed = async (promise) => { try { await promise; return null; } catch (error) {
        return [error instanceof IrisError, error.status, error.code]; } };
    told.nobody = await failed(door.request("nobody", 1));
    told.wrong = await failed(new Door(url, "wrong").request("greeters", 1));
    told.unreachable = await failed(new Door("http://127.0.0.1:1", token).request("greeters", 1));
    const stop = new AbortController();
    const never = failed(door.request("greeters", 1, { operation: "never", signal: stop.signal }));
    stop.abort(new Error("enough"));
    told.aborted = await never;

    told.events = [];
    const follow = new AbortController();
    const onOpen = async () => {
      await door.publish("orders.tea", { n: 1 });
      await door.publish("orders.tea", new Uint8Array([1, 2]));
    };
    for await (const { topic, payload, missed } of door.subscribe("orders.>", { onOpen })) {
      told.events.push([topic, payload instanceof Uint8Array ? [...payload] : payload, missed]);
      if (told.events.length === 2) break;
    }

    const tunnel = await door.openTunnel("greeters", { credit: 4 });
    const sending = (async () => {
      for (let n = 0; n < 100; n++) await tunnel.send(n % 2 ? n : new Uint8Array([n]));
      tunnel.finish();
    })();
    told.tunnel = [];
    for await (const payload of tunnel) told.tunnel.push(payload instanceof Uint8Array ? payload[0] : payload);
    await sending;
    told.noTunnel = await failed(door.openTunnel("nobody"));
    return told;
"""

EXPECTED = {
    "request": "hello world",
    "bytes": [0x81, 0xA5, *b"bytes", 0xC4, 1, 7],
    "headers": {"trace": "7", "iris-client": "page"},
    "large": 100_000,
    "survey": ["hello all", "all"],
    "nobody": [True, 404, "no_such_cluster"],
    "wrong": [True, 401, "wrong_token"],
    "unreachable": [True, 502, "lost"],
    "aborted": [False, None, None],
    "events": [["orders.tea", {"n": 1}, 0], ["orders.tea", [1, 2], 0]],
    "tunnel": list(range(100)),
    "noTunnel": [True, 404, "no_such_cluster"],
}


def node_command() -> list[str]:
    """Return what runs Node.js with WebSockets."""
    old = int(subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout[1:3]) < 22
    return ["node", *(["--experimental-websocket"] if old else [])]


def run_in_node(url: str, secret: str, body: str, folder: Path) -> object:
    """Run the body of an async function in Node.js, and return what it returns."""
    program = body.replace("await import(`${url}/iris.js`)", 'await import("./iris.mjs")')
    said = run_module(
        f"const url = {json.dumps(url)}, token = {json.dumps(secret)};\n"
        f"console.log(JSON.stringify(await (async () => {{ {program} }})()));\nprocess.exit(0);\n",
        folder,
    )
    return json.loads(said)


def run_module(program: str, folder: Path, name: str = "program.mjs") -> str:
    """Run a program in Node.js beside the module ``./iris.mjs``, and return what it prints."""
    (folder / "iris.mjs").write_bytes(MODULE.read_bytes())
    (folder / name).write_text(program)
    command = [*node_command(), name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@in_browser
def test_a_page_asks_tells_follows_and_talks(terminal: Terminal) -> None:
    secret = token(terminal, "page", *ALL_RIGHTS)
    with files(PAGES) as origin, DoorProcess(terminal, "--allow-origin", origin) as door, open_page(origin) as page:
        told = page.run(f"const url = {json.dumps(door.url)}, token = {json.dumps(secret)}; {CHECKS}")
    assert told == EXPECTED


@in_browser
def test_a_page_of_another_origin_is_let_in_by_the_door_only(terminal: Terminal) -> None:
    secret = token(terminal, "page", *ALL_RIGHTS)
    ask = "const { Door } = await import(`${url}/iris.js`); return new Door(url, token).request('greeters', 1)"
    elsewhere = DoorProcess(terminal, "--allow-origin", "https://shop.example")
    with files(PAGES) as origin, elsewhere as door, open_page(origin) as page:
        known = f"const url = {json.dumps(door.url)}, token = {json.dumps(secret)};"
        told = page.run(f"{known} return (async () => {{ {ask} }})().catch((error) => [error.status, error.code])")
    assert told == [502, "lost"]  # browsers say no more than that


@in_node
def test_a_program_of_node_does_the_same(terminal: Terminal, tmp_path: Path) -> None:
    secret = token(terminal, "page", *ALL_RIGHTS)
    with DoorProcess(terminal) as door:
        assert run_in_node(door.url, secret, CHECKS, tmp_path) == EXPECTED


@in_node
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: apt install curl")
def test_the_program_of_the_page_prints_what_stands_below_it(tmp_path: Path) -> None:
    """Its service, the file that the door hands out, and the program, as the page has them."""
    shown = list(blocks(ROOT / "docs" / "howto" / "doors" / "web.md"))
    serve, save, run = (block.code.removeprefix("$ ") for block in shown if block.language == "console")
    program, *_ = (block.code for block in shown if block.language == "js")
    with open_terminal() as terminal:
        (terminal.directory / "examples").symlink_to(ROOT / "examples")
        secret = token(terminal, "web", "--call", "greeters", "--publish", "orders.>", "--subscribe", "orders.>")
        (tmp_path / "token").write_text(f"{secret}\n")
        command = serve.splitlines()[0].split()[1:]
        with terminal.started(*command, announces="greeters"), DoorProcess(terminal) as door:
            saving = save.replace("http://127.0.0.1:8080", door.url).split()
            subprocess.run(saving, cwd=tmp_path, timeout=PATIENCE, check=True)
            assert (tmp_path / "iris.mjs").read_bytes() == MODULE.read_bytes()
            said = run_module(program.replace("http://127.0.0.1:8080", door.url), tmp_path, "ask.mjs")
    assert f"node ask.mjs\n{said}" == run


@in_browser
def test_the_example_page_works_and_survives_a_killed_door(terminal: Terminal) -> None:
    """``wait_for`` asserts each thing that the page shows."""
    secret = token(terminal, "page", "--call", "greeters", "--publish", "orders.>", "--subscribe", "orders.>")
    greet = "document.querySelector('button').click()"
    with files(PAGES) as origin:
        door = DoorProcess(terminal, "--allow-origin", origin)
        with door, open_page(f"{origin}/page.html?door={door.url}#{secret}") as page:
            page.wait_for("document.querySelector('li')?.textContent === 'following'")
            page.run(greet)
            page.wait_for("document.querySelector('output').textContent === 'hello world'")
            page.wait_for(
                """[...document.querySelectorAll('li')].at(-1).textContent === 'orders.tea: {"for":"world"}'"""
            )
            door.kill()
            page.run(greet)
            page.wait_for("document.querySelector('output').textContent.includes('connection to the door was lost')")
            door.start()
            page.wait_for("[...document.querySelectorAll('li')].at(-1).textContent === 'events were lost'")
            page.run(greet)
            page.wait_for("document.querySelector('output').textContent === 'hello world'")
            page.wait_for(
                """[...document.querySelectorAll('li')].at(-1).textContent === 'orders.tea: {"for":"world"}'"""
            )
            door.stop()


@in_node
def test_a_silent_door_is_taken_to_be_lost(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    gap = b'event: gap\ndata: {"missed": null}\n\n'

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            held.append(accepted)
            seen.append(accepted.recv(65_536))
            # On a slow machine the page gives up before it has read that its stream began, and asks as at first.
            accepted.sendall(head + gap if b"last-event-id" in seen[-1] else head)

    held: list[socket.socket] = []
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        body = """
            const { Door } = await import(`${url}/iris.js`);
            for await (const event of new Door(url, token).subscribe("a", { silence: 100 })) return event;
        """
        try:
            told = run_in_node(f"http://127.0.0.1:{listener.getsockname()[1]}", "x", body, tmp_path)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for accepted in held:
                accepted.close()
    assert told == {"gap": True, "missed": None}
    assert b"last-event-id" not in seen[0]
    assert any(b"last-event-id: -" in request for request in seen)  # the last one may have been given up
