"""Arguments of types that nobody meant: each is refused in one line that says what to do, or does no harm."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import open_stage

VALUES: tuple[Any, ...] = (
    0, 5, -1, 2.5, float("nan"), True, "a b", "\ud800", b"ab", (), [], ["x"], {}, {"x": 1}, {1: "x"}, object(), int
)  # fmt: skip
"""Put in the place of each argument in turn."""


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def is_empty(value: Any) -> bool:
    return not isinstance(value, bool | int | float) and not value


FITTING: dict[str, Callable[[Any], bool]] = {
    "reply": lambda value: value is None or isinstance(value, type),
    "payload": lambda value: value is not int and type(value) is not object and value not in ("\ud800", {1: "x"}),
    "timeout": is_number,
    "expires": lambda value: is_number(value) or (type(value) is int and value == 0),
    "ttl": is_number,
    "keep": is_number,
    "lease": is_number,
    "attempts": lambda value: type(value) is int and value > 0,
    "backoff": lambda value: is_number(value) or (type(value) is int and value == 0),
    "start": lambda value: type(value) is int and value >= 0,
    "replay": lambda value: value is True,
    "until": lambda value: value is None,
    "max_bytes": lambda value: type(value) is int and value >= 0,
    **dict.fromkeys(("hedge", "every"), is_number),
    **dict.fromkeys(("wait", "settle"), lambda value: is_number(value) or value == 0),
    "quiet": is_number,
    "count": lambda value: value == 5,
    "members": lambda value: type(value) is int and value >= 0,
    "key": lambda value: value == "a b",
    "idempotency_key": lambda value: value == "a b",
    "fallback": lambda _: True,
    "options": lambda value: value is None,
    "headers": lambda value: not value,
    "allow": lambda value: is_empty(value) or value == ["x"] or value == {"x": 1},
    **dict.fromkeys(("idempotent",), lambda value: value is True),
}  # fmt: skip
"""Values that are right for each argument, or have no effect.  No value fits arguments that are not named."""


async def store_events(events: iris.Subscription) -> None:
    while True:
        await events.confirm(await events.receive_batch())


async def survey(node: iris.Node, **arguments: Any) -> None:
    async with node.survey(**arguments) as answers:
        async for _ in answers:
            pass


def entered(operation: Callable[..., AbstractAsyncContextManager[Any]]) -> Callable[..., Awaitable[None]]:
    async def enter(node: iris.Node, **arguments: Any) -> None:
        async with operation(node, **arguments):
            pass

    return enter


async def publish_confirming(node: iris.Node, **arguments: Any) -> None:
    async with node.confirming() as events:
        await events.publish(**arguments)


def optional(**usual: Any) -> Callable[..., Awaitable[Any]]:
    async def request(node: iris.Node, **arguments: Any) -> object:
        return await node.request("store", options=iris.RequestOptions(**usual | arguments))

    return request


def of_bridge(operation: Callable[..., AbstractAsyncContextManager[Any]]) -> Callable[..., Awaitable[None]]:
    async def enter(node: iris.Node, **arguments: Any) -> None:
        async with operation(node.bridge(), **arguments):
            pass

    return enter


async def consume(node: iris.Node, topics: Any, **arguments: Any) -> None:
    async with node.bridge().consume(topics, **arguments):
        pass


async def drop_group(node: iris.Node, **arguments: Any) -> None:
    await node.bridge().drop_group(**arguments)


def at_once(function: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
    async def call(node: iris.Node, **arguments: Any) -> None:
        function(node, **arguments)

    return call


STORE: dict[str, Any] = {"cluster": "store"}
SAID: dict[str, Any] = {"payload": b"x"}
OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Awaitable[Any]], Mapping[str, Any]]] = {
    "request": (iris.Node.request, iris.Node.request, STORE),
    "idempotent request": (
        iris.Node.request, iris.Node.request, STORE | {"options": iris.RequestOptions(idempotent=True)}
    ),
    "options": (iris.RequestOptions, optional(), {}),
    "idempotent options": (iris.RequestOptions, optional(idempotent=True), {}),
    "broadcast": (iris.Node.broadcast, iris.Node.broadcast, STORE | SAID),
    "survey": (iris.Node.survey, survey, STORE | SAID),
    "publish": (iris.Node.publish, iris.Node.publish, SAID | {"topic": "kept.a"}),
    "publish_confirmed": (iris.Node.publish_confirmed, iris.Node.publish_confirmed, SAID | {"topic": "kept.a"}),
    "retain": (iris.Node.retain, iris.Node.retain, SAID | {"topic": "kept.a"}),
    "retain_confirmed": (iris.Node.retain_confirmed, iris.Node.retain_confirmed, SAID | {"topic": "kept.a"}),
    "raise_for_losses": (iris.Node.raise_for_losses, at_once(iris.Node.raise_for_losses), {"topic": "kept.a"}),
    "confirming publish": (publish_confirming, publish_confirming, SAID | {"topic": "kept.a", "key": "k"}),
    "confirming": (iris.Node.confirming, entered(iris.Node.confirming), {}),
    "subscribe": (iris.Node.subscribe, entered(iris.Node.subscribe), {"pattern": "a.*"}),
    "subscribe_durable": (
        iris.Node.subscribe_durable, entered(iris.Node.subscribe_durable), {"pattern": "a.*", "group": "g"}
    ),
    "open_tunnel": (iris.Node.open_tunnel, entered(iris.Node.open_tunnel), STORE),
    "join": (iris.Node.join, entered(iris.Node.join), {"cluster": "other", "service": iris.Service("other")}),
    "wait_for": (iris.Node.wait_for, iris.Node.wait_for, STORE),
    "watch": (iris.Node.watch, entered(iris.Node.watch), STORE),
    "members": (iris.Node.members, at_once(iris.Node.members), STORE),
    "forget_retained": (iris.Node.forget_retained, at_once(iris.Node.forget_retained), {"topic": "kept.a"}),
    "revoke": (iris.Node.revoke, iris.Node.revoke, {}),
    "forget_subscriber": (iris.Node.forget_subscriber, iris.Node.forget_subscriber, {}),
    "state": (iris.Node.state, entered(iris.Node.state), {"cluster": "prices"}),
    "bridge": (iris.Node.bridge, at_once(iris.Node.bridge), {}),
    "lease": (iris.Bridge.lease, of_bridge(iris.Bridge.lease), {"name": "scheduler"}),
    "saga": (iris.Bridge.saga, of_bridge(iris.Bridge.saga), {"name": "order"}),
    "queue": (iris.Bridge.queue, of_bridge(iris.Bridge.queue), {"name": "jobs"}),
    "books": (iris.Node.books, iris.Node.books, {}),
    "watch_losses": (iris.Node.watch_losses, at_once(iris.Node.watch_losses), {}),
    "drop_group": (iris.Bridge.drop_group, drop_group, {}),
    "consume": (iris.Bridge.consume, consume, {"topics": "a.>", "group": "g"}),
}  # fmt: skip
"""Callables: whose parameters to read, what to call, and the arguments besides the one that is wrong."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "confirming publish": ("topic", "payload", "key", "headers", "expires"),
    "state": ("cluster", "max_bytes", "allow", "timeout", "credential"),  # any text is a path
}


def parameters(name: str) -> tuple[str, ...]:
    found = tuple(inspect.signature(OPERATIONS[name][0]).parameters)
    return PARAMETERS.get(name) or (found[1:] if found[0] == "self" else found)


def test_every_public_method_with_arguments_is_among_them() -> None:
    methods = {
        name
        for name, method in (*vars(iris.Node).items(), *vars(iris.Bridge).items())
        if not name.startswith("_") and inspect.isfunction(method) and len(inspect.signature(method).parameters) > 1
    }
    assert methods <= OPERATIONS.keys()


async def outcome(operation: Callable[..., Awaitable[Any]], node: iris.Node, given: Mapping[str, Any]) -> object:
    try:
        return await operation(node, **given)
    except Exception as error:  # noqa: BLE001 -- which one it is, is the question
        return error


def check(said: str, came: object, *, fits: bool) -> None:
    if isinstance(came, iris.ConfigError | iris.LocalProtocolError | iris.AuthenticationError):
        assert not fits, f"{said} is refused: {came}"
        assert len(str(came)) > 10, said
        assert "\n" not in str(came), said
    elif isinstance(came, iris.RequestTimeout | iris.NotSent | iris.NoSuchCluster | iris.RemoteError):
        assert fits, f"{said} is no {type(came).__name__}"
    else:
        assert not isinstance(came, Exception), f"{said}: a raw {came!r}"
        assert fits, f"{said} is taken"


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_wrong_argument_is_refused_in_words_and_harms_nothing(autojump_clock: MockClock, name: str) -> None:
    store = iris.Service("store")

    @store.request
    async def give_back(request: iris.Request) -> object:
        return request.payload

    @store.tunnel
    async def take(tunnel: iris.Tunnel) -> None:
        async for _ in tunnel:
            pass

    @store.broadcast
    async def hear(message: iris.Message) -> None:
        del message

    _, operation, usual = OPERATIONS[name]
    async with open_stage() as stage:
        member, shop = await stage.pair(store)
        async with member.subscribe_durable("kept.>") as events, trio.open_nursery() as nursery:
            nursery.start_soon(store_events, events)
            for parameter in parameters(name):
                for value in VALUES:
                    given = {**usual, parameter: value}
                    fits = FITTING.get(parameter, lambda _: False)(value)
                    if parameter in ("idempotent", "replay") and not value:
                        continue  # the same as False, where no time is to be lost with it
                    if parameter == "hedge":
                        fits &= name == "idempotent options"
                    check(f"{name}({parameter}={value!r})", await outcome(operation, shop, given), fits=fits)
            nursery.cancel_scope.cancel()
        assert await shop.request("store", 1) == 1


MAKERS: tuple[Callable[[Any], object], ...] = (
    lambda value: iris.Service(value),
    lambda value: iris.Service("x", allow=value),
    lambda value: iris.Service("x", tracebacks=value),
    lambda value: iris.Service("x").request(value),
    lambda value: iris.Service("x").request("y")(value),
    lambda value: iris.Service("x").request("y", thread=value),
    lambda value: iris.Service("x").tunnel(value),
    lambda value: iris.Service("x").tunnel("y")(value),
    lambda value: iris.Service("x").broadcast(value),
    lambda value: iris.Limits(concurrency=value),
    lambda value: iris.Limits(queue=value),
    lambda value: iris.Limits(queue_bytes=value),
    lambda value: iris.Limits(adaptive=value),
    lambda value: iris.SubscriptionLimits(events=value),
    lambda value: iris.SubscriptionLimits(bytes=value),
    lambda value: iris.Config(max_payload=value),
    lambda value: iris.Config(drain_timeout=value),
)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    "value", ["a b", b"ab", -1, float("nan"), [3], {"a b": 1}, object()], ids=lambda value: type(value).__name__
)
def test_a_part_that_is_made_of_something_wrong_is_refused_in_words(make: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(iris.ConfigError, match="use "):
        make(value)


class Library(iris.Service, cluster="library"):
    pass


async def test_a_class_in_the_place_of_its_object_is_told_so(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        node = await stage.node("library")
        with pytest.raises(iris.ConfigError, match=r"^service is the class Library: make an object of it, Library\("):
            async with node.join("library", Library):  # type: ignore[arg-type]
                pass
