"""The AsyncAPI document of the door: what it says is what the door does."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema.validators import validator_for

from iris.doors import options
from iris.doors.http.asyncapi import document
from iris.doors.http.messages import SENT, TAKEN
from tests.support.door_messages import Json, check
from tests.support.doors import Place, Run, with_door

ROOT = Path(__file__).resolve().parents[3]
ASYNCAPI = json.loads((ROOT / "tests" / "support" / "asyncapi" / "schema-3.0.0.json").read_text())
VECTORS = json.loads((ROOT / "clients" / "serve_vectors.json").read_text())
SHIPPED = ROOT / "clients" / "asyncapi.json"


def test_the_document_is_one_of_asyncapi() -> None:
    valid = validator_for(ASYNCAPI)(ASYNCAPI)
    valid.validate(document())
    for change in ("asyncapi", "info", "channels"):
        broken = copy.deepcopy(document())
        broken[change] = "3.0"
        assert not valid.is_valid(broken), change
    broken = copy.deepcopy(document())
    broken["operations"]["request"]["action"] = "ask"
    assert not valid.is_valid(broken)


def test_what_it_refers_to_is_there() -> None:
    found = document()

    def look(value: Json) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                place: Any = found
                for name in str(value["$ref"]).removeprefix("#/").split("/"):
                    place = place[name]
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)

    look(found)


def test_clients_have_the_document_of_this_door() -> None:
    """Whoever changes it fetches ``/asyncapi.json`` of a door anew."""
    assert json.loads(SHIPPED.read_text()) == document()


@with_door()
async def test_the_door_hands_it_out_to_everybody(place: Place) -> None:
    answer = await place.fetch("GET", "/asyncapi.json", headers={})
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
    assert answer.json() == document()


def test_the_vectors_are_of_these_messages() -> None:
    seen: dict[str, set[str]] = {"door": {"ready"}, "program": set()}
    check("door", VECTORS["ready"])
    for conversation in VECTORS["conversations"]:
        for step in conversation["steps"]:
            for side in seen.keys() & step.keys():
                if step[side]["type"] != "later":  # which clients are to ignore
                    check(side, step[side], of_vectors=True)
                    seen[side].add(step[side]["type"])
    assert seen["door"] == set(SENT)
    assert seen["program"] <= set(TAKEN)


@pytest.mark.parametrize(
    ("operation", "known"),
    [
        ("request", options.REQUEST), ("survey", options.SURVEY), ("broadcast", options.BROADCAST),
        ("publish", options.PUBLISH),
    ],
)  # fmt: skip
def test_options_of_calls_are_those_that_the_door_reads(run: Run, operation: str, known: options.Readers) -> None:
    query = document()["operations"][operation]["bindings"]["http"]["query"]["properties"]
    assert query.keys() == known.keys()

    async def work(place: Place) -> None:
        for name, schema in query.items():
            wrong = {"string": None, "number": "x", "integer": "1.5", "boolean": "1"}[schema["type"]]
            if wrong is not None:
                answer = await place.post(f"/{operation}/greeters?{name}={wrong}", b"x")
                assert answer.status == 400, name
                assert f"option {name}" in answer.json()["detail"]

    run(work)
