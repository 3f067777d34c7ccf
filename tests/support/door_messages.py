"""Messages between the door and a program that serves, by the AsyncAPI document of the door."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from iris.doors.http.asyncapi import document

_VALIDATORS = {
    name: (Draft202012Validator(message["payload"]), message["payload"]["properties"].keys())
    for name, message in document()["channels"]["serve"]["messages"].items()
}


def check(side: str, message: dict[str, Any], *, later: bool = False) -> None:
    """Check a message of the ``door`` or of a ``program``; ``later`` ones may have fields of which nobody knows yet."""
    validator, fields = _VALIDATORS[f"{side}.{message['type']}"]
    validator.validate(message)
    assert later or message.keys() <= fields
