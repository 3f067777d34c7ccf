"""A page and a program in Python change one document, through a real door."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import iris.sync
from tests.support.browser import in_browser, open_page
from tests.support.command import Terminal
from tests.support.door_process import ALL_RIGHTS, DoorProcess, files, token

ROOT = Path(__file__).resolve().parents[3]

OPEN = """
    const { Door } = await import(`${url}/iris.js`);
    const { Document } = await import("/document.js");
    window.board = new Document(new Door(url, token), "board");
    window.seen = {};
    (async () => { for await (const { key, value } of board.watch()) seen[key] = value; })();
"""


@in_browser
def test_a_page_and_a_program_change_one_document(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>Document</title>")
    shutil.copy(ROOT / "examples" / "doors" / "document.js", tmp_path)
    for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, terminal.environment[name])
    secret = token(terminal, "page", *ALL_RIGHTS)
    with (
        iris.sync.open_node("board") as node,
        node.state("board", allow=["iris.door"]) as state,
        files(tmp_path) as origin,
        DoorProcess(terminal, "--allow-origin", origin) as door,
        open_page(f"{origin}/index.html") as page,
    ):
        state["title"] = "from Python"
        page.run(f"const url = {json.dumps(door.url)}, token = {json.dumps(secret)}; {OPEN}")
        page.wait_for("seen.title === 'from Python'")
        page.run(
            "await board.write('page', { two: ['ü\U0001f600', 2] });"
            "await board.remove({ key: 'title' });"
            "await board.add({ counter: 'visits', number: 3 });"
            "await board.add({ set: 'tags', element: ['a', 1] });"
        )
        state.counter("visits").add(2)
        assert dict(state) == {"page": {"two": ["ü\U0001f600", 2]}}
        assert set(state.set("tags")) == {("a", 1)}
        page.wait_for("seen.visits === 5 && seen.title === null")
        there = page.run("return [await board.read(), await board.read({ set: 'tags' })]")
        assert there == [dict(state), [["a", 1]]]
