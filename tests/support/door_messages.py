"""Messages between the door and a program that serves, by the AsyncAPI document of the door."""

from __future__ import annotations

from collections.abc import KeysView
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from iris.doors.http.asyncapi import document

Json = dict[str, "Json"] | list["Json"] | str | float | bool | None
"""A value that JSON can hold."""

_VALIDATORS: dict[str, tuple[Validator, KeysView[str]]] = {
    name: (Draft202012Validator(message["payload"]), message["payload"]["properties"].keys())
    for name, message in document()["channels"]["serve"]["messages"].items()
}


def check(side: str, message: dict[str, Any], *, of_vectors: bool = False) -> None:
    """Check a message of the ``door`` or of a ``program``.

    One of the vectors may lack fields, which are the client's own, and have some of which nobody knows.
    """
    validator, fields = _VALIDATORS[f"{side}.{message['type']}"]
    errors = [str(one) for one in validator.iter_errors(message) if not (of_vectors and one.validator == "required")]
    assert not errors
    assert of_vectors or message.keys() <= fields
