"""A page with Yjs and a program in Python edit one document, through a real door."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import iris.sync
from tests.support.browser import in_browser, open_page
from tests.support.command import Terminal
from tests.support.door_process import ALL_RIGHTS, DoorProcess, files, token
from tests.support.yjs import lay_out

ROOT = Path(__file__).resolve().parents[3]

OPEN = """
    const Y = await import("yjs");
    const { Door } = await import(`${url}/iris.js`);
    const { openDocument } = await import("/document.js");
    window.doc = await openDocument(new Door(url, token), "board", Y);
"""


@in_browser
def test_a_page_and_a_program_edit_one_document(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path)
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
        state.text("notes").append("Python was here. ")
        page.run(f"const url = {json.dumps(door.url)}, token = {json.dumps(secret)}; {OPEN}")
        page.wait_for("doc.getMap('values').get('title') === 'from Python'")
        page.run(
            "doc.getText('text/notes').insert(17, 'So was a page: \u00fc\U0001f600.');"
            "doc.getMap('values').set('page', 7); doc.getMap('values').delete('title');"
            "doc.getArray('list/items').push(['one', { two: 2 }]);"
            "doc.getMap('counter/visits').set('page', 3);"
        )
        state.counter("visits").add(2)
        state.text("notes").insert(0, "> ")
        for change in state.watch("items"):
            if change.kind == "list" and len(state.list("items")) == 2:
                break
        page.wait_for("doc.getText('text/notes').toString().startsWith('> ')")
        there = page.run(
            "return { values: doc.getMap('values').toJSON(), notes: doc.getText('text/notes').toString(),"
            " items: doc.getArray('list/items').toJSON(), visits: doc.getMap('counter/visits').size }"
        )
        here = {
            "values": dict(state),
            "notes": str(state.text("notes")),
            "items": list(state.list("items")),
            "visits": 2,
        }
        assert (
            there
            == here
            == {
                "values": {"page": 7},
                "notes": "> Python was here. So was a page: \u00fc\U0001f600.",
                "items": ["one", {"two": 2}],
                "visits": 2,
            }
        )
        assert state.counter("visits").value == 5
