"""Names and node ids."""

from __future__ import annotations

import pytest

from iris.kernel.errors import ConfigError
from iris.kernel.names import check_key, check_name, is_name, is_node_id


@pytest.mark.parametrize(
    "value", ["", "0" * 31, "0" * 33, "0" * 31 + "A", "g" * 32, "0" * 32 + "\n", b"0" * 32, None, 1]
)
def test_what_is_no_node_id(value: object) -> None:
    assert not is_node_id(value)


@pytest.mark.parametrize("value", ["a", "databases", "A-b_c.9", "x" * 128, "...", "-"])
def test_names(value: str) -> None:
    assert is_name(value)
    assert check_name(value, "cluster") == value


@pytest.mark.parametrize("value", ["", "x" * 129, "a b", "ä", "a/b", "a\n", "a\x00", "*", "a@b", None, 5, b"a"])
def test_what_is_no_name(value: object) -> None:
    assert not is_name(value)
    with pytest.raises(ConfigError, match="is not a site name"):
        check_name(value, "site")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="is not an operation name"):
        check_name(value, "operation")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("value", [None, "", "orders/7", "ä" * 128, "x" * 256, "a\x00b"])
def test_keys(value: str | None) -> None:
    assert check_key(value) == value


@pytest.mark.parametrize("value", ["x" * 257, "ä" * 129, "\ud800", 5, b"a", True])
def test_what_is_no_key(value: object) -> None:
    with pytest.raises(ConfigError, match="is not a key: use a text of at most 256 bytes"):
        check_key(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
