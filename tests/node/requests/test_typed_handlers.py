"""Handlers with typed payloads, and handlers in worker threads, as their callers see them."""

from __future__ import annotations

import dataclasses
import enum
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pydantic
import pytest
import trio
from trio.testing import MockClock

import iris
from iris.patterns.payloads import Mismatch, converter
from iris.patterns.service.handlers import prepared
from tests.support.scheduling import let_threads_run
from tests.support.stages import open_stage


@dataclasses.dataclass
class Item:
    name: str
    price: float


@dataclasses.dataclass
class Basket:
    items: list[Item]
    coupon: str | None = None


class Total(msgspec.Struct):
    total: float


class Receipt(pydantic.BaseModel):
    lines: list[str]


def make_till() -> iris.Service:
    till = iris.Service("till")

    @till.request("total")
    async def total(basket: Basket) -> Total:
        await trio.lowlevel.checkpoint()
        return Total(sum(item.price for item in basket.items))

    @till.request("receipt")
    def receipt(basket: Basket, request: iris.Request) -> Receipt:
        return Receipt(lines=[request.sender.cluster, *(item.name for item in basket.items)])

    @till.request("halve")
    async def halve(total: Total) -> Item:
        return Item("half", total.total / 2)

    @till.request("count")
    async def count(receipt: Receipt, request: iris.Request) -> int:
        return len(receipt.lines)

    @till.request("double", thread=True)
    def double(number: int) -> list[object]:
        return [2 * number, threading.current_thread() is threading.main_thread()]

    @till.request("whole", thread=True)
    def whole(request: iris.Request) -> object:
        return [request.operation, request.payload]

    assert len({total, receipt, halve, count, double, whole}) == 6, "decorators return the functions themselves"
    return till


BASKET = {"items": [{"name": "tea", "price": 2.5}, {"name": "cup", "price": 4}]}


@pytest.mark.parametrize(
    ("operation", "payload", "reply"),
    [
        ("total", BASKET, {"total": 6.5}),
        ("total", Basket([Item("tea", 3.0)]), {"total": 3.0}),
        ("receipt", BASKET, {"lines": ["shop", "tea", "cup"]}),
        ("halve", {"total": 3}, {"name": "half", "price": 1.5}),
        ("halve", Total(5.0), {"name": "half", "price": 2.5}),
        ("count", Receipt(lines=["a", "b"]), 2),
        ("double", 21, [42, False]),
        ("whole", [1, None], ["whole", [1, None]]),
    ],
)
async def test_payloads_and_replies_are_what_the_handler_declares(
    autojump_clock: MockClock, operation: str, payload: object, reply: object
) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(make_till())
        let_threads_run(autojump_clock)
        assert await shop.request("till", payload, operation=operation) == reply


@pytest.mark.parametrize(
    ("operation", "payload", "text"),
    [
        ("total", b"", "payload: expected dict, got bytes b''"),
        ("total", {"items": [{"name": "tea"}]}, "payload.items[0]: price missing"),
        ("receipt", {"itmes": [], "gift": 1}, "payload: items missing; not known: itmes, gift"),
        ("halve", {"total": "much"}, "payload: Expected `float`, got `str`"),
        ("count", {"lines": 3}, "lines: Input should be a valid list"),
        ("double", "x", "payload: expected int, got str 'x'"),
    ],
)
async def test_a_payload_that_does_not_fit_is_the_callers_error_and_the_handler_does_not_run(
    autojump_clock: MockClock, operation: str, payload: object, text: str
) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(make_till())
        let_threads_run(autojump_clock)
        with pytest.raises(iris.RemoteError) as caught:
            await shop.request("till", payload, operation=operation)
        assert caught.value.code == "bad_request"
        assert text in caught.value.message


async def test_a_thread_that_is_not_done_in_time_holds_up_neither_caller_nor_member(autojump_clock: MockClock) -> None:
    released = threading.Event()
    ended = threading.Event()
    lazy = iris.Service("lazy")

    def wait(_: iris.Request) -> None:
        released.wait(30)
        ended.set()

    lazy.request(wait, thread=True)
    async with open_stage() as stage:
        member, shop = await stage.pair(lazy, config=iris.Config(drain_timeout=0.5))
        autojump_clock.autojump_threshold = 0.02
        with pytest.raises(iris.RequestTimeout):
            await shop.request("lazy", timeout=0.2)
        await trio.sleep(0.1)
        service = member.statistics().services["lazy"]
        assert (service.running, service.expired + service.cancelled) == (0, 1)
        assert not ended.is_set(), "the thread runs on"
        released.set()
        await trio.to_thread.run_sync(ended.wait)


@pytest.mark.parametrize("tracebacks", [False, True])
async def test_a_traceback_is_told_only_if_the_service_says_so(autojump_clock: MockClock, tracebacks: bool) -> None:
    service = iris.Service("open", tracebacks=tracebacks)

    @service.request
    async def fail(_: iris.Request) -> None:
        raise ValueError("nothing there")

    async with open_stage() as stage:
        _, shop = await stage.pair(service)
        with pytest.raises(iris.RemoteError, match="ValueError: nothing there") as caught:
            await shop.request("open")
        assert ("Traceback" in caught.value.message) == tracebacks
        assert ("test_typed_handlers.py" in caught.value.message) == tracebacks


# -- what can be registered ----------------------------------------------------------------------------------


class Caller:
    async def __call__(self, request: iris.Request) -> object:
        return request.payload

    def method(self, request: iris.Request) -> object:
        return request.payload


async def unannotated(request):  # type: ignore[no-untyped-def]
    await trio.lowlevel.checkpoint()


async def anything(request: Any) -> object:
    return request


async def variable(*requests: object) -> object:
    return requests


async def with_default(request: iris.Request, limit: int = 3) -> object:
    return limit


PLAIN: list[Any] = [unannotated, anything, variable, with_default, Caller(), Caller().method, partial(anything), print]


@pytest.mark.parametrize("handler", PLAIN)
def test_a_handler_that_takes_the_request_is_called_as_it_is(handler: Callable[..., Any]) -> None:
    assert prepared(handler) is handler


def test_types_that_only_type_checkers_see_are_no_trouble_for_the_request() -> None:
    namespace: dict[str, Any] = {}
    exec("async def handler(request: 'hidden.Request'): ...", namespace)
    assert prepared(namespace["handler"]) is namespace["handler"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python evaluates annotations where they stand before 3.14")
def test_annotations_that_python_evaluates_late_are_no_trouble_either() -> None:
    """Names that only type checkers see may stand in them without quotes and without a future import."""
    source = "async def handler(request: hidden.Request): ...\nasync def adding(a: int, b: list[Nowhere]) -> int: ..."
    namespace: dict[str, Any] = {}
    exec(compile(source, "<late>", "exec", dont_inherit=True), namespace)
    assert prepared(namespace["handler"]) is namespace["handler"]
    with pytest.raises(iris.ConfigError, match=r"list\[Nowhere\] cannot be resolved"):
        prepared(namespace["adding"])


async def nothing() -> None: ...


async def untyped_pair(a, request: iris.Request) -> None: ...  # type: ignore[no-untyped-def]


async def unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


async def complex_number(a: complex) -> None: ...


class Selfless:
    async def hello() -> str:  # type: ignore[misc]  # as it is forgotten
        return "hello"


IMPOSSIBLE: list[Any] = [
    (Selfless().hello, False, "takes no self"),  # type: ignore[misc]
    (untyped_pair, False, "needs a type"),
    (unknown, False, "'?Nowhere'? cannot be resolved"),
    (complex_number, False, "complex"),
    (anything, True, "cannot run in a thread"),
    (Caller(), True, "cannot run in a thread"),
]


@pytest.mark.parametrize(("handler", "thread", "text"), IMPOSSIBLE)
def test_a_handler_that_could_never_be_called_is_refused_when_it_is_registered(
    handler: Callable[..., Any], thread: bool, text: str
) -> None:
    service = iris.Service("store")
    with pytest.raises(iris.ConfigError, match=text):
        service.request("operation", thread=thread)(handler)
    assert not service.requests


async def test_dataclasses_and_models_can_be_sent_in_every_pattern(autojump_clock: MockClock) -> None:
    till = make_till()
    heard: list[object] = []

    @till.broadcast
    async def hear(message: iris.Message) -> None:
        heard.append(message.payload)

    @till.tunnel
    async def mirror(tunnel: iris.Tunnel) -> None:
        await tunnel.send(await tunnel.receive())

    basket = Basket([Item("tea", 2.5)])
    sent = {"items": [{"name": "tea", "price": 2.5}], "coupon": None}
    async with open_stage() as stage:
        member, shop = await stage.pair(till)
        async with member.subscribe_durable("baskets") as events, trio.open_nursery() as nursery:

            async def confirm() -> None:
                async for event in events:
                    heard.append(event.payload)
                    await events.confirm([event])

            nursery.start_soon(confirm)
            await shop.broadcast("till", basket)
            await shop.publish("baskets", basket)
            await shop.retain("baskets", basket)
            await shop.publish_confirmed("baskets", basket)
            async with shop.confirming() as confirming:
                await confirming.publish("baskets", basket)
            async with shop.survey("till", basket, operation="total") as answers:
                assert [answer.payload async for answer in answers] == [{"total": 2.5}]
            async with shop.open_tunnel("till") as tunnel:
                await tunnel.send(basket)
                assert await tunnel.receive() == sent
            assert heard == [sent] * 5
            nursery.cancel_scope.cancel()


@dataclass
class Add:
    left: Expression
    right: Expression


@dataclass
class Multiply:
    left: Expression
    right: Expression


Expression = Add | Multiply | int


def nested(depth: int, last: object) -> object:
    value = last
    for _ in range(depth):
        value = {"left": value, "right": 1}
    return value


@pytest.mark.parametrize(("last", "fits"), [(1, True), ("bad", False)])
def test_a_nested_union_is_tried_in_time_linear_in_the_payload(last: object, fits: bool) -> None:
    convert = converter(Expression)
    with nullcontext() if fits else pytest.raises(Mismatch):
        convert(nested(60, last))  # two times two times ... sixty times: it would never end


class Strange(enum.Enum):
    A = "a"

    @classmethod
    def _missing_(cls, value: object) -> Strange | None:
        raise AttributeError(value)


class Failing(pydantic.BaseModel):
    value: int

    @pydantic.field_validator("value")
    @classmethod
    def look_up(cls, value: int) -> int:
        raise KeyError(value)


class Many(pydantic.BaseModel):
    values: list[int]


@pytest.mark.parametrize(
    ("annotation", "payload", "text"),
    [
        (Strange, 5, "expected a value of Strange"),
        (Failing, {"value": 1}, "KeyError: 1"),
        (Many, {"values": ["x"] * 1000}, "1000 values are not what Many declares"),
    ],
)
def test_whatever_a_model_raises_the_payload_does_not_fit(annotation: Any, payload: object, text: str) -> None:
    with pytest.raises(Mismatch, match=text):
        converter(annotation)(payload)
