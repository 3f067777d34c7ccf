"""The API for asyncio and for plain calls is the trio API: the same names, arguments and docstrings."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

import iris
import iris.aio
import iris.sync

CLASSES = ("Answers", "ClusterMembership", "ConfirmedEvents", "Node", "Subscription", "Tunnel", "Watch")
NOT_HERE = {"as_stream", "close"}
"""Streams are trio's; ``Answers.close`` is for the code that gathers them; a plain tunnel is closed by ``close``."""
FOR_TRIO = {"aclose": "close"}


def public(kind: type) -> dict[str, object]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("module", [iris.aio, iris.sync], ids=lambda module: module.__name__)
def test_a_class_has_the_public_methods_and_properties_of_the_trio_api(module: ModuleType, name: str) -> None:
    original, other = getattr(iris, name), getattr(module, name)
    wanted = {FOR_TRIO.get(one, one) if module is iris.sync else one for one in public(original)}
    attributes: tuple[str, ...] = getattr(original, "__slots__", ())
    missing = wanted - public(other).keys() - NOT_HERE - {*attributes}
    assert missing <= {"post_soon", "follow", "forget"}, "run by others, for the user"


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("module", [iris.aio, iris.sync], ids=lambda module: module.__name__)
def test_a_method_takes_the_arguments_of_the_trio_api(module: ModuleType, name: str) -> None:
    original, other = public(getattr(iris, name)), public(getattr(module, name))
    for method, function in other.items():
        trio_name = {"close": "aclose"}.get(method, method) if module is iris.sync else method
        if not callable(function) or trio_name not in original:
            continue
        first, second = (inspect.signature(one) for one in (original[trio_name], function))  # type: ignore[arg-type]
        assert list(first.parameters) == list(second.parameters), method
        assert [one.default for one in first.parameters.values()] == [
            one.default for one in second.parameters.values()
        ], method
        assert inspect.getdoc(function), method


def test_open_node_takes_what_that_of_trio_takes() -> None:
    for module in (iris.aio, iris.sync):
        assert inspect.signature(module.open_node).parameters == inspect.signature(iris.open_node).parameters
