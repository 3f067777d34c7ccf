"""The tree of errors."""

from __future__ import annotations

import copy

import pytest

from iris.kernel import errors


def every_error() -> list[type[errors.IrisError]]:
    return [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, errors.IrisError)]


@pytest.mark.parametrize("error", every_error())
def test_every_error_says_whose_fault_it_is(error: type[errors.IrisError]) -> None:
    assert error.__doc__
    assert error.__module__ == "iris.kernel.errors"


def test_protocol_errors_are_of_one_side_or_the_other() -> None:
    children = errors.ProtocolError.__subclasses__()
    assert children == [errors.LocalProtocolError, errors.RemoteProtocolError]


def test_overload_says_when_to_come_back() -> None:
    assert errors.Overloaded("busy").retry_after == 0.1
    assert errors.Overloaded("busy", retry_after=2.0).retry_after == 2.0
    assert str(errors.Overloaded("busy", retry_after=2.0)) == "busy"


def test_a_remote_error_shows_its_code() -> None:
    error = errors.RemoteError("no_stock", "nothing left")
    assert (error.code, error.message, str(error)) == ("no_stock", "nothing left", "no_stock: nothing left")
    assert str(errors.RemoteError("no_stock", "")) == "no_stock"


@pytest.mark.parametrize(
    "error",
    [errors.Overloaded("busy", retry_after=2.0), errors.RemoteError("code", "text"), errors.NotSent("why")],
)
def test_an_error_survives_a_process_pool(error: errors.IrisError) -> None:
    twin = copy.copy(error)  # by the same protocol as pickling
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)
