"""The OpenAPI document of the door: what it says is what the door does."""

from __future__ import annotations

import ast
import asyncio
import copy
import json
import os
import re
import shutil
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from iris.doors.http.openapi import codes_of, document
from tests.doors.http.test_bridged import bridged
from tests.support.door_messages import Json
from tests.support.doors import NOW, Place, with_door

ROOT = Path(__file__).resolve().parents[3]
OPENAPI = json.loads((ROOT / "tests" / "support" / "openapi" / "schema-3.1.json").read_text())
SHIPPED = ROOT / "clients" / "openapi.json"
PAGE = (ROOT / "docs" / "reference" / "doors" / "http.md").read_text()

TOOLS = ROOT / "tests" / "support" / "openapi"
SCHEMATHESIS = shutil.which("schemathesis")

OF_OTHERS = {(404, "no_such_address"), (405, "no_such_method"), (409, "lease_lost"), (429, "no_credit")}
"""Problems of other addresses, of WebSockets and of tunnels."""


def test_the_document_is_one_of_openapi() -> None:
    valid = validator_for(OPENAPI)(OPENAPI)
    valid.validate(document())
    for change in ("openapi", "info", "paths"):
        broken = copy.deepcopy(document())
        broken[change] = "3.0"
        assert not valid.is_valid(broken), change
    for schema in schemas(document()):
        Draft202012Validator.check_schema(schema)


def schemas(part: Json) -> Iterator[Any]:
    if isinstance(part, dict):
        if "schema" in part:
            yield part["schema"]
        for one in part.values():
            yield from schemas(one)
    elif isinstance(part, list):
        for one in part:
            yield from schemas(one)


def test_clients_have_the_document_of_this_door() -> None:
    """Whoever changes it fetches ``/openapi.json`` of a door anew."""
    assert json.loads(SHIPPED.read_text()) == document()


@with_door()
async def test_the_door_hands_it_out_to_everybody(place: Place) -> None:
    answer = await place.fetch("GET", "/openapi.json", headers={})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert answer.json() == document()


def test_it_has_the_problems_of_the_sources_and_of_the_page() -> None:
    """A problem that the sources of the door raise, or that its page has, is in the document, and none that is not."""
    told = {(int(one), code) for one in document()["components"]["responses"] for code in codes_of(int(one))}
    doors = ROOT / "iris" / "doors"
    raised = {
        (call.args[0].value, call.args[1].value)
        for path in (*(doors / "http").glob("*.py"), doors / "clients.py", doors / "options.py", doors / "values.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Problem"
        and isinstance(call.args[0], ast.Constant) and isinstance(call.args[1], ast.Constant)
    }  # fmt: skip
    assert {(429, "too_fast"), (401, "ended")} <= raised - OF_OTHERS <= told | {(401, "no_such_client")}
    rows = re.findall(r"^\| (4\d\d|5\d\d) \| ([^|]+) \|", PAGE, re.MULTILINE)
    page = {(int(status), code) for status, codes in rows for code in re.findall(r"`([a-z_]+)`", codes)}
    assert page - OF_OTHERS - {(431, "malformed"), (502, "error")} == told


RIGHTS = {
    "call": (">",), "publish": (">",), "subscribe": (">",), "take": (">",),
    "expires": NOW + 0.05,
}  # fmt: skip
"""The clock of the door stands still: the token counts for ever, and each stream of events is over in that time."""


@pytest.mark.skipif(SCHEMATHESIS is None, reason="no schemathesis on PATH: pip install 'schemathesis >= 4'")
@with_door(rights=RIGHTS)
async def test_schemathesis_finds_nothing_that_the_document_does_not_say(place: Place, tmp_path: Path) -> None:
    """What it does not look at, and why, is in ``tests/support/openapi``."""
    async with bridged(tmp_path, place):
        program = await asyncio.create_subprocess_exec(
            str(SCHEMATHESIS), f"--config-file={TOOLS / 'schemathesis.toml'}", "run", f"{place.url}/openapi.json",
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "DOOR_TOKEN": place.token},
            stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        output, _ = await program.communicate()
        assert program.returncode == 0, output.decode()
