"""The types of the JavaScript module: they say what it exports, and what the door takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from iris.doors import options
from iris.doors.http.app import MODULE, TYPES
from tests.support.command import PATIENCE

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "typescript" / "program.ts"
SCRIPT, DECLARED = MODULE.read_text(), TYPES.read_text()

POSTED = {"signal", "headers"}
OPTIONS = {
    "Request": options.REQUEST.keys() | POSTED | {"idempotencyKey"},
    "Broadcast": options.BROADCAST.keys() | POSTED,
    "Publish": options.PUBLISH.keys() | POSTED,
    "Survey": options.SURVEY.keys() | POSTED,
    "Put": options.PUT.keys() | POSTED,
    "Subscribe": {"group", "signal", "onOpen", "silence"},
    "Tunnel": options.TUNNEL.keys() | {"credit"},
    "Serve": options.SERVE.keys() | {"signal", "onReady"},
    "Work": options.TAKE.keys() | {"signal", "onReady"},
    "ReadLog": options.READ.keys() | {"signal"},
    "Lease": options.LEASE.keys() | {"signal"},
}
"""Options of the door, and those that the module reads itself."""


def classes(text: str) -> dict[str, str]:
    """Return the bodies of exported classes by their names."""
    return dict(re.findall(r"^export class (\w+)[^{]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))


def methods(body: str) -> set[str]:
    """Return the names of public methods: what begins a line of a class and has brackets."""
    return set(re.findall(r"^  (?:private |async )?\*?(\w+|\[Symbol\.\w+\])(?:<[\w ,=]+>)?\(", body, re.MULTILINE))


def fields(name: str) -> set[str]:
    """Return the fields of an interface, with those of the one that it extends."""
    head = rf"^export interface {name}(?: extends (\w+))? \{{\n"
    found = re.search(rf"{head}(.*?)^\}}", DECLARED, re.MULTILINE | re.DOTALL)
    assert found, name
    base, body = found.groups()
    return {*re.findall(r"^  (\w+)\??:", body, re.MULTILINE), *(fields(base) if base else ())}


def test_every_export_and_its_public_parts_are_declared() -> None:
    exported, declared = classes(SCRIPT), classes(DECLARED)
    assert {"Door", "Tunnel", "IrisError", "Packed"} == exported.keys() == declared.keys()
    assert re.findall(r"^export (?!class)", SCRIPT, re.MULTILINE) == []
    assert {"request", "survey", "holdLease", "constructor"} < methods(exported["Door"])
    for name, body in exported.items():
        assert methods(body) == methods(declared[name])
        kept = set(re.findall(r"^    this\.(\w+) =", body, re.MULTILINE)) - {"name"}  # every Error has a name
        assert kept <= set(re.findall(r"^  (\w+):", declared[name], re.MULTILINE))


def test_each_doc_begins_as_that_of_the_module() -> None:
    told: dict[str, str] = {}
    for part in SCRIPT.split("/**")[1:]:
        doc, _, rest = part.partition("*/")
        if found := re.match(r"\n(?:export class |  (?:async )?\*?)(\w+|\[Symbol\.\w+\])[( ](?!#)", rest):
            told[found[1]] = doc.strip("* \n").splitlines()[0]
    assert {"Door", "request", "readLog", "serve", "finish", "IrisError"} <= told.keys()
    assert {name: line for name, line in told.items() if line.rstrip() not in DECLARED} == {}


@pytest.mark.parametrize(("name", "known"), OPTIONS.items())
def test_the_options_are_those_of_the_door_and_of_the_module(name: str, known: AbstractSet[str]) -> None:
    assert fields(f"{name}Options") == known
    for own in known & {"idempotencyKey", "onOpen", "silence", "credit", "onReady"}:
        assert re.search(rf"[{{,] ?{own} = ", SCRIPT)


@pytest.mark.skipif(shutil.which("tsc") is None, reason="no TypeScript compiler on PATH: npm install -g typescript")
@pytest.mark.parametrize("module", [("nodenext", "nodenext"), ("esnext", "bundler")], ids=lambda pair: pair[0])
def test_a_program_that_uses_all_of_it_compiles(module: tuple[str, str], tmp_path: Path) -> None:
    for path in (MODULE, TYPES, PROGRAM):
        shutil.copy(path, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    command = [
        "tsc", "--strict", "--noEmit", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess",
        "--noPropertyAccessFromIndexSignature", "--target", "es2022", "--lib", "es2022,dom",
        "--module", module[0], "--moduleResolution", module[1], PROGRAM.name,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout
