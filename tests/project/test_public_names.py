"""The published names: programs are written against them, so none may vanish or change its parameters."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

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
        {
            "operation": None,
            "key": None,
            "timeout": 5.0,
            "headers": None,
            "reply": None,
            "wait": 0.0,
            "fallback": None,
            "options": None,
        },
    ),
    iris.Node.broadcast: (["cluster", "payload"], {"headers": None}),
    iris.Node.survey: (["cluster", "payload"], {"timeout": 1.0}),
    iris.Node.publish: (["topic", "payload"], {"key": None, "headers": None, "expires": None}),
    iris.Node.publish_confirmed: (["topic", "payload"], {"key": None, "timeout": 5.0, "headers": None}),
    iris.Node.retain: (["topic", "payload"], {"key": None, "headers": None}),
    iris.Node.subscribe_durable: (["pattern"], {"name": None, "group": None, "share": None}),
    iris.Node.bridge: (["name"], {}),
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


OPAQUE = {iris.Credential, iris.CredentialWatch, iris.PeerIdentity, iris.Environment}
"""Programs hand these on, and need no names for what they are made of."""


def functions_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    for attribute in dir(value) if inspect.isclass(value) else ():
        if not attribute.startswith("_"):
            found = inspect.getattr_static(value, attribute)
            found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
            if inspect.isfunction(found):
                yield f"{name}.{attribute}", inspect.unwrap(found)


def classes_in(hint: Any) -> Iterator[type]:
    if inspect.isclass(hint):
        yield hint
    for argument in typing.get_args(hint):
        parts = cast("list[object]", argument) if isinstance(argument, list) else [argument]
        for part in parts:
            yield from classes_in(part)


def test_every_type_in_a_public_signature_has_a_public_name() -> None:
    named = [(name, getattr(iris, name)) for name in iris.__all__ if name != "FromLifespan"]  # no class, but an alias
    public = [(name, value) for name, value in named if value not in OPAQUE]
    missing = {
        f"{where}: {kind.__module__}.{kind.__name__}"
        for name, value in public
        for where, function in functions_of(name, value)
        for hint in typing.get_type_hints(function).values()
        for kind in classes_in(hint)
        if kind.__module__.startswith("iris.") and kind not in vars(iris).values()
    }
    assert missing == set()


MEMBERS = {
    iris.Node: {
        "addresses", "books", "bridge", "broadcast", "clusters", "confirming", "durable_subscribers",
        "forget_retained", "forget_subscriber", "join", "members", "nodes", "open_tunnel", "publish",
        "publish_confirmed", "raise_for_losses", "request", "retain", "retain_confirmed", "revoke", "state",
        "statistics", "subscribe", "subscribe_durable", "survey", "wait_for", "watch", "watch_losses",
    },
    iris.Bridge: {"consume", "drop_group", "lease", "queue", "saga"},
    iris.WorkQueue: {"put", "receive"},
    iris.JobWorker: {"in_hand"},
    iris.Consumer: {"lag"},
    iris.LogBatch: {"commit", "count", "index"},
    iris.Job: {"commit", "extend", "fail", "release"},
    iris.Subscription: {"confirm", "receive_batch", "statistics"},
    iris.Tunnel: {
        "abort", "aclose", "as_stream", "is_broken", "is_closed", "max_message", "receive", "receive_file", "send",
        "send_eof", "send_file", "statistics", "was_finished_by_peer",
    },
    iris.Answers: {"close", "expected", "missing"},
    iris.Watch: {"missed"},
    iris.Service: {"allows", "asyncapi", "broadcast", "client", "describe", "request", "tunnel"},
}  # fmt: skip


@pytest.mark.parametrize("published", MEMBERS, ids=lambda published: published.__name__)
def test_classes_publish_what_their_users_need_and_nothing_of_their_insides(published: type) -> None:
    methods = {
        name
        for name in dir(published)
        if not name.startswith("_")
        and (callable(found := inspect.getattr_static(published, name)) or isinstance(found, property | classmethod))
    }
    assert methods == MEMBERS[published]


def test_a_timeout_is_one_of_pythons_own_too() -> None:
    assert issubclass(iris.RequestTimeout, TimeoutError)
    assert str(iris.RequestTimeout("no reply in 5 s")) == "no reply in 5 s"


def test_every_error_is_an_iris_error() -> None:
    errors = [value for value in vars(iris).values() if inspect.isclass(value) and issubclass(value, Exception)]
    assert len(errors) > 10
    assert [error for error in errors if not issubclass(error, iris.IrisError)] == []


def test_errors_carry_what_callers_act_on() -> None:
    assert iris.Overloaded("full", retry_after=0.5).retry_after == 0.5
    assert (iris.RemoteError("bad", "no row").code, iris.RemoteError("bad", "no row").message) == ("bad", "no row")


def test_every_module_can_be_imported() -> None:
    """A module that nobody imports may be broken without any other test noticing."""
    modules = {module.name for module in pkgutil.walk_packages(iris.__path__, "iris.")}
    assert len(modules) > 300
    for name in sorted(modules):
        importlib.import_module(name)


@pytest.mark.parametrize("name", ["iris.logs", "iris.metrics"])
def test_what_telemetry_publishes_is_documented_and_in_the_reference(name: str) -> None:
    module = importlib.import_module(name)
    page = (Path(__file__).parents[2] / "docs/reference/api/telemetry.md").read_text()
    named = re.findall(rf"(?:auto(?:class|function|data)|py:data):: {name}\.(\w+)$", page, re.MULTILINE)
    assert sorted(named) == sorted(module.__all__)
    documented = [getattr(module, public) for public in module.__all__ if callable(getattr(module, public))]
    assert [value for value in documented if not inspect.getdoc(value)] == []


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'iris' has no attribute 'nothing'"):
        getattr(iris, "nothing")  # noqa: B009 -- type checkers know that it is not there
    assert {"logs", "metrics", "open_node"} <= set(dir(iris))


def test_public_classes_and_functions_are_documented() -> None:
    documented = [value for name in iris.__all__ if callable(value := getattr(iris, name))]
    assert documented
    assert [value for value in documented if not inspect.getdoc(value)] == []
