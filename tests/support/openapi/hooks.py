"""Hooks of Schemathesis: what an OpenAPI document cannot say, and how long a call may take in a test.

What is changed is valid before and after, so that each example stays what it was: one to accept, or one to refuse.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

NAMES = {"cluster": "greeters", "topic": "orders.tea", "queue": "jobs"}
"""What there is behind the door of the test: half of the valid names become these."""

LONGEST = 0.2


def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Change an example."""
    parameters: dict[str, object] = case.path_parameters or {}
    for kind, name in parameters.items():
        if re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", str(name)) and len(str(name)) % 2:
            parameters[kind] = NAMES[kind]
    query: dict[str, Any] = case.query or {}
    headers: dict[str, object] = case.headers or {}
    for time in ("timeout", "wait"):  # both are 50 s together at most
        if _is_number(query.get(time)) and LONGEST < float(query[time]) <= 50:
            query[time] = LONGEST
    if _is_number(query.get("hedge")) and query.get("idempotent") in (None, False, "false"):
        query["idempotent"] = "true"  # a hedge is for these only
    if case.meta.generation.mode.value == "positive" and query.get("topic") in ("", [""]):
        query["topic"] = ["orders.>"]  # coverage has an empty text for the pattern of patterns, which takes none
    headers.pop("Idempotency-Key", None)  # greeters keep no outcomes: tests/doors/http/test_idempotency_key.py


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float | str) and not isinstance(value, bool) and float(value) >= 0
    except ValueError:
        return False


import_module("schemathesis").hook(before_call)  # it is not installed where the tests are
