"""The published names: programs are written against them, so none may vanish or change its parameters."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import iris

NAMES = {
    "open_node", "Node", "Service", "Request", "Message", "Tunnel", "Event", "Answer", "Config",
    "IrisError", "NoSuchCluster", "Overloaded", "RequestTimeout", "MemberLost", "NotSent", "Unknown", "RemoteError",
    "NotAllowed", "TunnelBroken", "PayloadTooLarge", "AuthenticationError", "ConfigError", "ProtocolError",
}  # fmt: skip

# Of each: positional parameters in their order, then those by name with their defaults.
SIGNATURES: dict[Callable[..., Any], tuple[list[str], dict[str, Any]]] = {
    iris.open_node: (["name"], {"credential": None, "listen": (), "seeds": (), "site": None, "config": None}),
    iris.Node.request: (
        ["cluster", "payload"],
        {"timeout": 5.0, "idempotent": False, "operation": None, "key": None, "headers": None},
    ),
    iris.Node.broadcast: (["cluster", "payload"], {"headers": None}),
    iris.Node.survey: (["cluster", "payload"], {"timeout": 1.0}),
    iris.Node.publish: (["topic", "payload"], {"confirm": False, "key": None, "timeout": 5.0, "headers": None}),
    iris.Node.subscribe: (["pattern"], {"group": None, "overflow": "drop_oldest", "limits": None}),
    iris.Node.open_tunnel: (["cluster"], {"timeout": 5.0, "operation": None}),
    iris.Node.join: (["cluster", "service"], {"limits": None, "credential": None}),
    iris.Node.wait_for: (["cluster", "members", "timeout"], {}),
    iris.Node.members: (["cluster"], {}),
    iris.Node.watch: (["cluster"], {}),
    iris.Node.statistics: ([], {}),
}


def test_every_published_name_is_there() -> None:
    assert set(iris.__all__) >= NAMES
    assert [name for name in iris.__all__ if not hasattr(iris, name)] == []


def test_the_list_of_names_is_sorted_and_complete() -> None:
    assert iris.__all__ == sorted(iris.__all__)
    public = {
        name
        for name, value in vars(iris).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }
    assert public <= set(iris.__all__)


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_parameters_stay_as_published(function: Callable[..., Any]) -> None:
    positional, by_name = SIGNATURES[function]
    parameters = inspect.signature(function).parameters
    kinds = {name: parameter.kind for name, parameter in parameters.items() if name != "self"}
    assert [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD] == positional
    assert {name: parameters[name].default for name in by_name} == by_name
    assert all(kinds[name] is inspect.Parameter.KEYWORD_ONLY for name in by_name)


def test_every_error_is_an_iris_error() -> None:
    errors = [value for value in vars(iris).values() if inspect.isclass(value) and issubclass(value, Exception)]
    assert len(errors) > 10
    assert [error for error in errors if not issubclass(error, iris.IrisError)] == []


def test_errors_carry_what_callers_act_on() -> None:
    assert iris.Overloaded("full", retry_after=0.5).retry_after == 0.5
    assert (iris.RemoteError("bad", "no row").code, iris.RemoteError("bad", "no row").message) == ("bad", "no row")


@pytest.mark.parametrize("name", sorted(module.name for module in pkgutil.iter_modules(iris.__path__)))
def test_modules_of_the_front_door_import(name: str) -> None:
    """A module that imports nobody may be broken without any other test noticing."""
    if not name.startswith("__"):
        importlib.import_module(f"iris.{name}")


def test_public_classes_and_functions_are_documented() -> None:
    documented = [value for name in iris.__all__ if callable(value := getattr(iris, name))]
    assert documented
    assert [value for value in documented if not inspect.getdoc(value)] == []
