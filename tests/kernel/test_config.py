"""Limits that could not work are refused where they are given."""

from __future__ import annotations

from typing import Any

import pytest

from iris.kernel.config import KIB, MIB, Config
from iris.kernel.errors import ConfigError

NAMES = [*Config.__struct_fields__]


def test_the_defaults_are_valid() -> None:
    assert Config() == Config(max_payload=MIB)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_finite_and_above_zero(name: str) -> None:
    wrong: list[Any] = [0, -1, float("nan"), float("inf"), True, "1", None]
    for value in wrong:
        with pytest.raises(ConfigError, match=f"config: {name} is"):
            Config(**{name: value})


@pytest.mark.parametrize("name", [name for name in NAMES if type(getattr(Config(), name)) is int])
def test_a_count_is_a_whole_number(name: str) -> None:
    with pytest.raises(ConfigError, match=f"config: {name} is .* whole number"):
        Config(**{name: getattr(Config(), name) + 0.5})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"max_payload": 16 * MIB + 1, "link_bytes": 64 * MIB}, "max_payload"),
        ({"max_payload": 16 * MIB}, "link_bytes"),
        ({"link_bytes": MIB}, "link_bytes"),
        ({"max_headers": 16 * KIB + 1}, "max_headers"),
        ({"broadcast_window": 256 * KIB - 1}, "broadcast_window"),
        ({"batch_bytes": 2 * MIB}, "batch_bytes"),
        ({"session_lifetime": 180.0}, "session_rejected"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"config: {reason}"):
        Config(**given)


def test_the_largest_payload_is_possible() -> None:
    assert Config(max_payload=16 * MIB, link_bytes=32 * MIB).max_payload == 16 * MIB


@pytest.mark.parametrize(("name", "value"), [("max_headers", 16 * KIB), ("broadcast_window", 256 * KIB)])
def test_a_bound_may_be_reached(name: str, value: int) -> None:
    assert getattr(Config(**{name: value}), name) == value


def test_every_limit_says_why_it_is_what_it_is() -> None:
    """Each field is followed by a docstring; the class has no other strings."""
    import ast
    import inspect
    import textwrap

    body = ast.parse(textwrap.dedent(inspect.getsource(Config))).body[0]
    assert isinstance(body, ast.ClassDef)
    explained = [
        field.target.id
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)
    ]
    assert explained == NAMES
