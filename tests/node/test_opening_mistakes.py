"""Mistakes that are easily made when a node is opened."""

from __future__ import annotations

import pytest

import iris


@pytest.mark.parametrize("option", ["listen", "seeds"])
async def test_one_address_in_the_place_of_a_list_is_named(option: str) -> None:
    address = "tcp://127.0.0.1:7000"
    with pytest.raises(iris.ConfigError, match=rf"{option} is '{address}': use a list of addresses"):
        async with iris.open_node(**{option: address}):  # type: ignore[arg-type]
            raise AssertionError("it opened")
