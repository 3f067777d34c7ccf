"""Programs in JavaScript, Go and Python use the bridge behind a real door."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

import iris.sync
from iris.doors.http.encoding import NOTHING, encoded
from tests.doors.process.test_browser import in_node, run_in_node
from tests.doors.process.test_go import BUILDING, LONGEST, go, in_go, module
from tests.doors.process.test_serving_js import node_of
from tests.support.browser import in_browser, open_page
from tests.support.command import PATIENCE, Terminal
from tests.support.door_process import DoorProcess, files, token

__all__ = ("module",)  # a fixture

RIGHTS = (
    "--take", "jobs", "--publish", "jobs", "--publish", "orders.>", "--read", "billing/orders.>", "--read", "orders.>",
    "--lease", "iris.door/>", "--call", "greeters",
)  # fmt: skip

ROOT = Path(__file__).resolve().parents[3]
JOBS = 200

VECTORS = """
    const { Door } = await import(`${url}/iris.js`);
    const door = new Door(url, token);
    const until = (run) => {
      const stop = new AbortController();
      return run({ signal: stop.signal }, () => stop.abort());
    };
    const open = WebSocket;
    let closed;
    globalThis.WebSocket = class extends open {
      constructor(...given) { super(...given); this.addEventListener("close", () => closed()); }
    };
    const does = {
      take: () => until((options, stop) => {
        closed = stop;
        return door.work("jobs", (payload) => {
          if (payload === "fail") throw new Error("no tea");
          if (payload === "hopeless") throw Object.assign(new Error("no hope"), { permanent: true });
        }, { limit: 4, ...options });
      }),
      read: () => until(async (options, stop) => {
        closed = stop;
        for await (const _ of door.readLog("orders.>", { group: "billing", ...options }));
      }),
      lease: () => {
        closed = () => null;
        return door.holdLease("orders", "leader", () => null, { ttl: 1 });
      },
    };
"""

USE = """
    const { Door, IrisError } = await import(`${url}/iris.js`);
    const door = new Door(url, token);
    const told = {};
    const failed = async (promise) => { try { await promise; return null; } catch (error) {
        return [error instanceof IrisError, error.status, error.code]; } };
    const long = { timeout: 40 };

    await door.put("jobs", { n: 1 }, { key: "k", ...long });
    await door.put("jobs", new Uint8Array([10, 0]), long);
    told.jobs = [];
    const stop = new AbortController();
    await door.work("jobs", async (payload, job) => {
      job.extend();
      told.jobs.push([payload instanceof Uint8Array ? [...payload] : payload, job.key, job.attempt].join());
      if (told.jobs.length === 3) stop.abort();
      if (job.key && job.attempt === 1) throw new Error("the first time");
      if (!job.key) throw Object.assign(new Error("no tea"), { permanent: true });
    }, { limit: 1, attempts: 2, backoff: 0.01, signal: stop.signal });
    told.jobs.sort();
    do told.status = await door.queueStatus("jobs"); while (told.status.done + told.status.dead < 2);
    told.status = [told.status.done, told.status.dead, told.status.in_hand];

    for (const n of [1, 2]) await door.publish("orders.tea", { n }, { confirm: true, ...long });
    told.read = [];
    const look = async (options, most) => {
      for await (const { events } of door.readLog("orders.>", options)) {
        told.read.push(...events.map((event) => event.payload.n));
        if (told.read.length >= most) break;
      }
    };
    await look({ group: "billing", until: "now" }, Infinity);
    await door.publish("orders.tea", { n: 3 }, { confirm: true, ...long });
    await look({ group: "billing" }, 3);
    await look({ group: "billing", limit: 1 }, 4);
    await look({ until: "now", start: "earliest" }, Infinity);

    const first = await door.holdLease("iris.door", "leader", async ({ token }) => {
      told.held = await failed(door.holdLease("iris.door", "leader", () => null, { ttl: 1, timeout: 0.1 }));
      await new Promise((resolve) => setTimeout(resolve, 1500));
      return token;
    }, { ttl: 1, timeout: 40 });
    const mine = ({ token, signal }) => [token, signal.aborted];
    const second = await door.holdLease("iris.door", "leader", mine, { timeout: 40 });
    told.lease = [second[0] > first, second[1]];
    const enough = new AbortController();
    const given = door.holdLease("iris.door", "leader", ({ signal }) => new Promise((_, reject) => {
      signal.addEventListener("abort", () => reject(new IrisError({ status: 400, code: "mine" })));
      enough.abort(new Error("enough"));
    }), { signal: enough.signal, timeout: 40 });
    told.mine = await failed(given);

    told.keyed = await failed(door.request("greeters", "world", { idempotencyKey: 'a "key"' }));

    told.refused = [
      await failed(door.work("others", () => null)), await failed(door.put("others", 1)),
      await failed(door.readLog("others").next()), await failed(door.holdLease("others", "leader", () => null)),
      await failed(door.queueStatus("others")),
    ];
    return told;
"""

EXPECTED = {
    "jobs": ["10,0,,1", "[object Object],k,1", "[object Object],k,2"],
    "status": [1, 1, 0],
    "read": [1, 2, 3, 3, 1, 2, 3],
    "held": [True, 504, "timeout"],
    "lease": [True, False],
    "mine": [True, 400, "mine"],
    "keyed": [True, 400, "no_outcomes"],  # greeters keeps none
    "refused": [[True, 403, "not_allowed"]] * 5,
}


@contextmanager
def bridge(terminal: Terminal) -> Generator[None]:
    with terminal.started(
        "bridge", "--topic", "jobs", "--topic", "orders.>", "--data", "log", announces="serves bridge"
    ):
        yield


@in_node
def test_a_program_of_node_uses_the_bridge(terminal: Terminal, tmp_path: Path) -> None:
    secret = token(terminal, "node", *RIGHTS)
    with bridge(terminal), DoorProcess(terminal) as door:
        assert run_in_node(door.url, secret, USE, tmp_path) == EXPECTED


@in_node
def test_a_program_of_node_does_what_the_vectors_say(tmp_path: Path) -> None:
    vectors = json.loads((ROOT / "clients" / "work_vectors.json").read_text())
    protocols, paths, conversations = vectors["protocols"], vectors["paths"], vectors["conversations"]
    played: list[str] = []

    async def main() -> None:
        async def door(socket: ServerConnection) -> None:
            conversation = conversations[len(played)]
            assert socket.request is not None
            came = urlsplit(socket.request.path)
            query = urlencode(sorted(parse_qsl(came.query)))
            assert f"{unquote(came.path)}?{query}" == paths[conversation["kind"]]
            await play(socket, conversation["steps"])
            played.append(conversation["name"])

        names = [Subprotocol(name) for name in protocols.values()]
        async with serve(door, "127.0.0.1", 0, subprotocols=names) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            kinds = json.dumps([one["kind"] for one in conversations])
            body = f"{VECTORS} for (const kind of {kinds}) await does[kind]();"
            url = f"http://127.0.0.1:{port}"
            await asyncio.to_thread(run_in_node, url, "x", f"{body} return null;", tmp_path)

    asyncio.run(main())
    assert played == [one["name"] for one in conversations]


async def play(socket: ServerConnection, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        if "door" in step:
            payload = base64.b64decode(step["bytes"]) if "bytes" in step else NOTHING
            await socket.send(encoded(step["door"], payload))
        else:
            async with asyncio.timeout(PATIENCE):
                head = json.loads(await socket.recv())
            assert step["program"].items() <= head.items(), step


@in_browser
def test_a_page_uses_the_bridge(terminal: Terminal, tmp_path: Path) -> None:
    secret = token(terminal, "page", *RIGHTS)
    (tmp_path / "index.html").write_text("<!doctype html><title>Work</title>")
    with (
        bridge(terminal),
        files(tmp_path) as origin,
        DoorProcess(terminal, "--allow-origin", origin) as door,
        open_page(f"{origin}/index.html") as page,
    ):
        known = f"const url = {json.dumps(door.url)}, token = {json.dumps(secret)};"
        page.run(f"{known} window.told = null; (async () => {{ {USE} }})().then((told) => (window.told = told));")
        page.wait_for("told !== null")
        assert page.run("return told") == EXPECTED


def test_a_job_whose_door_is_killed_is_given_out_again(terminal: Terminal) -> None:
    secret = token(terminal, "web", *RIGHTS)

    def connected(door: DoorProcess) -> ClientConnection:
        url = door.url.replace("http", "ws", 1) + "/take/jobs?backoff=0.01&wait=40"
        return connect(url, additional_headers={"authorization": f"Bearer {secret}"})

    def job(program: ClientConnection) -> dict[str, Any]:
        while (message := json.loads(program.recv(PATIENCE)))["type"] != "job":
            pass
        return dict(message)

    with bridge(terminal), DoorProcess(terminal) as door:
        with connected(door) as program:
            put = urllib.request.Request(f"{door.url}/put/jobs?timeout=40", b"1", {"authorization": f"Bearer {secret}"})
            put.add_header("content-type", "application/json")
            assert urllib.request.urlopen(put).status == 204
            assert (job(program)["attempt"]) == 1
            door.kill()
        door.start()
        with connected(door) as program:
            again = job(program)
            assert (again["payload"], again["attempt"]) == (1, 2)
            program.send(json.dumps({"type": "commit", "id": again["id"]}))
            assert json.loads(program.recv(PATIENCE)) == {"type": "committed", "id": again["id"]}


@in_node
@in_go
@LONGEST
@pytest.mark.usefixtures("module")
def test_workers_of_three_languages_share_a_queue(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them gets some jobs, and each job is done once."""
    secret = token(terminal, "worker", *RIGHTS)
    built = go("build", "-o", str(tmp_path / "worker"), "./internal/worker", within=BUILDING)
    assert built.returncode == 0, built.stderr
    script = f"""
        const {{ Door }} = await import(`${{url}}/iris.js`);
        const {{ writeFileSync }} = await import("node:fs");
        const door = new Door(url, token);
        const done = [];
        const stop = new AbortController();
        const working = door.work("jobs", (payload) => {{ done.push(payload); }}, {{
          limit: 1, signal: stop.signal, onReady: () => writeFileSync("ready", ""),
        }});
        while ((await door.queueStatus("jobs")).done < {JOBS}) await new Promise((resolve) => setTimeout(resolve, 20));
        stop.abort();
        await working;
        return done;
    """
    record, ready = tmp_path / "go.txt", tmp_path / "ready"
    done: dict[str, list[int]] = {"python": []}

    def run_node() -> None:
        done["node"] = cast("list[int]", run_in_node(door.url, secret, script, tmp_path))

    def work(worker: iris.sync.JobWorker) -> None:
        for job in worker:
            with job:
                done["python"].append(job.payload)

    with contextlib.ExitStack() as stack:
        stack.enter_context(bridge(terminal))
        door = stack.enter_context(DoorProcess(terminal))
        desk = stack.enter_context(node_of(terminal, monkeypatch))
        by_node, by_python = threading.Thread(target=run_node), threading.Thread(target=lambda: work(worker))
        command = [str(tmp_path / "worker"), door.url, "jobs", str(record), "1"]
        program = subprocess.Popen(command, env={**os.environ, "TOKEN": secret}, stdout=subprocess.PIPE)
        stack.enter_context(program)
        stack.callback(program.kill)
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        by_node.start()
        while not ready.exists():
            assert by_node.is_alive()
            time.sleep(0.01)
        desk.wait_for("bridge", timeout=PATIENCE)
        with iris.sync.open_node("iris.door") as node, node.bridge().queue("jobs") as jobs:
            worker = jobs.receive(limit=1)
            by_python.start()
            with desk.bridge().queue("jobs") as putting:
                for number in range(JOBS):
                    putting.put(number, timeout=PATIENCE)
            by_node.join(PATIENCE)
        by_python.join(PATIENCE)
        done["go"] = [int(line) for line in record.read_text().splitlines()]
    assert all(done.values()), done
    assert Counter(number for numbers in done.values() for number in numbers) == Counter(range(JOBS))
