"""Mistakes that are easily made when a node is opened."""

from __future__ import annotations

from typing import Any

import pytest

import iris


@pytest.mark.parametrize("option", ["listen", "seeds"])
async def test_one_address_in_the_place_of_a_list_is_named(option: str) -> None:
    address = "tcp://127.0.0.1:7000"
    with pytest.raises(iris.ConfigError, match=rf"{option} is '{address}': use a list of addresses"):
        async with iris.open_node(**{option: address}):  # type: ignore[arg-type]
            raise AssertionError("it opened")


@pytest.mark.parametrize(
    "options",
    [
        {"listen": 5}, {"listen": [5]}, {"listen": [b"tcp://127.0.0.1:1"]}, {"seeds": 5}, {"seeds": [None]},
        {"config": 5}, {"config": {}}, {"revocations": 5}, {"revocations": b"list"}, {"site": 5}, {"site": ["a"]},
        {"site": "a", "prefer_site": 5}, {"site": "a", "prefer_site": ["a"]}, {"site": "a", "prefer_site": {5: 1}},
        {"site": "a", "prefer_site": {"b": "1"}}, {"lan": 5}, {"dial_only": "yes"}, {"credential": "a\0b"},
    ],
    ids=repr,
)  # fmt: skip
async def test_what_is_of_another_type_is_named_before_anything_is_opened(options: dict[str, Any]) -> None:
    with pytest.raises(iris.ConfigError, match=r": use |give site=") as caught:
        async with iris.open_node(**options):
            raise AssertionError("it opened")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("credential", [3, b"a secret", bytearray(b"a secret")])
async def test_what_is_no_credential_is_named(credential: object) -> None:
    with pytest.raises(iris.ConfigError, match="use a Credential, a CredentialWatch or a file's path") as caught:
        async with iris.open_node(credential=credential):  # type: ignore[arg-type]
            raise AssertionError("it opened")
    assert f"of type {type(credential).__name__}:" in str(caught.value)
    assert "secret" not in str(caught.value)
