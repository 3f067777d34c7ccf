"""Operations with types: a service's methods as those of its clients, named arguments, replies that are converted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, assert_type

import msgspec
import pydantic
import pytest
from trio.testing import MockClock

import iris
import iris.testing
from iris.patterns.service.signatures import signature_of
from tests.support.stages import Stage, open_stage

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Query:
    item: str
    count: int = 1


@dataclass
class Offer:
    item: str
    price: float


class Quotes(iris.Service, cluster="quotes"):
    def __init__(self, prices: dict[str, float]) -> None:
        super().__init__()
        self.prices = prices

    @iris.operation
    async def look_up(self, query: Query) -> Offer:
        """Return the price of an item.

        And nothing else.
        """
        return Offer(query.item, self.prices[query.item] * query.count)

    @iris.operation
    async def order(self, item: str, count: int = 1, *, request: iris.Request | None = None) -> list[Offer]:
        assert request is not None
        assert request.sender.cluster == "shop"
        return [Offer(item, self.prices[item])] * count

    @iris.operation(name="stock", thread=True)
    def in_stock(self, item: str) -> bool:
        return item in self.prices

    @iris.operation
    async def forget(self, item: str) -> None:
        del self.prices[item]

    @iris.operation
    async def lie(self, item: str) -> int:
        return item  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


async def open_shop(stage: Stage) -> iris.Node:
    await stage.member(Quotes({"tea": 2.5, "milk": 1.0}))
    shop = await stage.node("shop")
    await shop.wait_for("quotes")
    return shop


async def test_a_client_has_the_methods_of_the_service_with_their_types() -> None:
    async with open_stage() as stage:  # in real time, for one of them works in a thread
        quotes = Quotes.client(await open_shop(stage), timeout=20)
        offer = assert_type(await quotes.look_up(Query("tea", 2)), Offer)
        assert offer == Offer("tea", 5.0)
        offers = assert_type(await quotes.order("milk", count=2), list[Offer])
        assert offers == [Offer("milk", 1.0)] * 2
        assert await quotes.order("milk") == [Offer("milk", 1.0)]
        in_stock: Any = quotes.in_stock("tea")  # for iris.sync: here it is to be awaited
        assert await in_stock is True
        assert await quotes.forget("milk") is None  # type: ignore[func-returns-value]
        with pytest.raises(iris.RemoteError, match="KeyError"):
            await quotes.look_up(Query("milk"))


async def test_arguments_that_do_not_fit_fail_as_those_of_a_function(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        quotes: Any = Quotes.client(await open_shop(stage))
        with pytest.raises(TypeError, match=r"order\(item: str, count: int = 1\).*unexpected keyword argument 'much'"):
            quotes.order("milk", much=2)
        with pytest.raises(TypeError, match="missing a required argument: 'item'"):
            quotes.order()
        with pytest.raises(AttributeError, match=r"no operation 'absent': it has .*look_up"):
            quotes.absent()
        with pytest.raises(AttributeError, match="no operation 'lookup': did you mean 'look_up'"):
            quotes.lookup("tea")


MISFITS: list[tuple[Any, str]] = [
    ([], "payload: expected a map of item, count, got list"),
    ({"count": 1}, "item missing"),
    ({"itme": "tea", "count": 1}, "payload: item missing; not known: itme"),
    ({"item": "tea", "count": "1"}, "payload.count: expected int, got str '1'"),
]


async def test_a_payload_that_does_not_fit_the_named_arguments_is_a_bad_request(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await open_shop(stage)
        for payload, text in MISFITS:
            with pytest.raises(iris.RemoteError) as caught:
                await shop.request("quotes", payload, operation="order")
            assert caught.value.code == "bad_request"
            assert text in caught.value.message


async def test_a_reply_is_converted_or_refused(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await open_shop(stage)
        offer = await shop.request("quotes", Query("tea"), operation="look_up", reply=Offer)
        assert assert_type(offer, Offer) == Offer("tea", 2.5)
        assert_type(await shop.request("quotes", Query("tea"), operation="look_up"), Any)
        with pytest.raises(iris.RemoteError, match=r"of cluster 'quotes': payload: .*expected int") as caught:
            await Quotes.client(shop).lie("x")
        assert caught.value.code == "reply_malformed"
        with pytest.raises(iris.ConfigError, match="cannot be the type of a payload"):
            await shop.request("quotes", b"", reply=complex)


async def test_who_asks_for_another_operation_is_told_which_there_are(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        shop = await open_shop(stage)
        with pytest.raises(iris.RemoteError, match="no_such_operation") as caught:
            await shop.request("quotes", b"", operation="absent")
        assert "look_up(query: Query) -> Offer" in caught.value.message
        assert "stock(item: str) -> bool" in caught.value.message


async def test_a_member_describes_itself(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        described = await (await open_shop(stage)).request("quotes", None, operation="iris.describe")
    assert described == Quotes({}).describe()
    assert described["operations"]["look_up"] == {
        "signature": "(query: Query) -> Offer",
        "payload": "a map of item, count",
        "doc": "Return the price of an item.",
    }
    assert described["types"] == {"Query": {"item": "str", "count": "int"}, "Offer": {"item": "str", "price": "float"}}


class Untyped(iris.Service, cluster="untyped"):
    @iris.operation  # pyright: ignore[reportUnknownArgumentType]
    async def find(self, item) -> None: ...  # type: ignore[no-untyped-def]


def test_a_service_of_a_class_is_refused_early() -> None:
    async def request(self: Any, item: str) -> None: ...

    with pytest.raises(iris.ConfigError, match=r"Bad\.request: a Service has something of this name"):
        type("Bad", (iris.Service,), {"request": iris.operation(request)})

    class Nameless(iris.Service): ...

    with pytest.raises(iris.ConfigError, match="a service needs a name"):
        Nameless()
    with pytest.raises(iris.ConfigError, match="Nameless names no cluster"):
        Nameless.client(cast_node())
    with pytest.raises(iris.ConfigError, match=r"Quotes\.client got 'desk': give it a node"):
        Quotes.client("desk")  # type: ignore[arg-type]
    with pytest.raises(iris.ConfigError, match=r"Untyped\.find: item has no type: annotate it"):
        Untyped()
    assert Nameless("other").name == "other"
    with pytest.raises(iris.ConfigError, match="are Iris's own"):
        iris.Service("shop").request("iris.describe")(any_first)


@dataclass
class Ride:
    since: complex


def test_an_operation_whose_type_no_payload_can_have_is_named_with_the_field() -> None:
    class Bikes(iris.Service, cluster="bikes"):
        @iris.operation
        async def rent(self, ride: Ride) -> None: ...

    with pytest.raises(iris.ConfigError, match=r"Bikes\.rent: ride: Ride\.since: <class 'complex'> cannot be the type"):
        Bikes()


class Greeter(iris.Service, cluster="greeters"):
    @iris.operation
    async def greet(self, name: str = "world", token: str = "secret of this member") -> str:
        raise NotImplementedError

    @iris.operation
    async def put(self, value: Any, ttl: float = 60.0) -> list[Any]:
        return [value, ttl]

    @iris.operation
    async def only(self, *, b: int, a: int = 1) -> list[int]:
        return [a, b]

    @iris.operation
    async def one(self, name: str = "world") -> str:
        return name

    @staticmethod
    @iris.operation
    async def both(item: str, count: int) -> str:
        return item * count

    @iris.operation
    @classmethod
    async def made(cls, item: str) -> str:
        return cls.__name__ + item

    @iris.operation
    async def first(self, request: iris.Request, item: str) -> str:
        return f"{item} for {request.sender.cluster}"


class RealGreeter(Greeter):
    async def greet(self, name: str = "world", token: str = "secret of this member") -> str:
        return f"hello {name}"


async def test_clients_call_what_members_have_whatever_form_it_is_of(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        await stage.member(RealGreeter())
        shop = await stage.node("shop")
        await shop.wait_for("greeters")
        greeter = Greeter.client(shop)
        assert await greeter.greet() == "hello world"
        assert await greeter.greet("you") == "hello you"
        assert await greeter.put(5) == [5, 60.0]
        assert await greeter.put(5, ttl=1.0) == [5, 1.0]
        assert await greeter.only(b=2) == [1, 2]
        assert await greeter.one() == "world"
        assert await greeter.both("a", 3) == "aaa"
        assert await greeter.made("!") == "RealGreeter!"
        whole: Any = greeter
        assert await whole.first("tea") == "tea for shop"
        with pytest.raises(iris.RemoteError) as caught:
            await shop.request("greeters", b"", operation="absent")
        assert "secret" not in caught.value.message
        assert "token: str = ..." in caught.value.message


class Awkward:
    def __repr__(self) -> str:
        raise KeyError("no text")


AWKWARD = Awkward()


async def with_awkward_default(item: str, other: Literal["\ud800"] = "\ud800", more: Any = AWKWARD) -> None: ...


async def hidden_fields(item: str) -> Hidden: ...  # type: ignore[empty-body]


@dataclass
class Hidden:
    value: Decimal


async def test_a_member_describes_itself_whatever_its_handlers_hold(autojump_clock: MockClock) -> None:
    service = iris.Service("store")
    service.request("awkward")(with_awkward_default)
    service.request("hidden")(hidden_fields)
    async with open_stage() as stage:
        _, shop = await stage.pair(service)
        described = await shop.request("store", None, operation="iris.describe")
        assert described["types"] == {"Hidden": {"value": "Any"}}
        with pytest.raises(iris.RemoteError, match="no_such_operation"):
            await shop.request("store", b"", operation="absent")


class Row(msgspec.Struct, rename="camel"):
    item_name: str
    parts: list[Query]


class Bill(pydantic.BaseModel):
    total: int = pydantic.Field(alias="sum")


async def bill_of(row: Row) -> Bill: ...  # type: ignore[empty-body]


def test_models_are_described_with_their_fields_as_a_payload_names_them() -> None:
    service = iris.Service("bills")
    service.request(bill_of)
    described = service.describe()
    assert described["types"] == {
        "Row": {"itemName": "str", "parts": "list[Query]"},
        "Query": {"item": "str", "count": "int"},
        "Bill": {"sum": "int"},
    }
    assert described["operations"][""]["payload"] == "a map of itemName, parts"


async def positional(a: int, b: int, /) -> None: ...


async def request_by_keyword(*, request: iris.Request) -> None: ...


async def yields(request: iris.Request) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (positional, "positional-only"),
        (request_by_keyword, "by its place"),
        (yields, "yields, and a reply is one value"),
    ],
)
def test_what_could_never_be_called_is_refused(handler: Callable[..., Any], text: str) -> None:
    with pytest.raises(iris.ConfigError, match=text):
        iris.Service("store").request(handler)


async def flagged(a: int, debug=False, request: iris.Request | None = None) -> object:  # type: ignore[no-untyped-def]
    return [a, debug, request is not None]


async def keyword_request(a: int, *, request: iris.Request) -> object:
    return [a, request.payload]


async def test_the_request_is_given_to_the_parameter_that_wants_it(autojump_clock: MockClock) -> None:
    service = iris.Service("store")
    service.request("flagged")(flagged)
    service.request("keyword")(keyword_request)
    async with open_stage() as stage:
        _, shop = await stage.pair(service)
        assert await shop.request("store", 3, operation="flagged") == [3, False, True]
        assert await shop.request("store", 3, operation="keyword") == [3, 3]


def cast_node() -> Any:
    class Node:
        def request(self) -> None: ...

    return Node()


async def request_first(request: iris.Request, item: str, count: int) -> None: ...


async def any_first(request: Any) -> None: ...


async def one_with_default(item: str, count: int = 2) -> None: ...


async def closure(item: str, count=3) -> None: ...  # type: ignore[no-untyped-def]


async def by_keyword(*, item: str) -> None: ...


async def hidden_return(item: str) -> Decimal: ...  # type: ignore[empty-body]


SIGNATURES: list[tuple[Callable[..., Any], list[str], str | None, bool]] = [
    (request_first, ["item", "count"], "request", True),
    (any_first, [], None, False),
    (one_with_default, ["item", "count"], None, True),
    (closure, ["item"], None, False),
    (by_keyword, ["item"], None, True),
    (hidden_return, ["item"], None, False),
]


@pytest.mark.parametrize(("handler", "arguments", "request_name", "by_name"), SIGNATURES)
def test_what_a_handler_takes_is_read_off_its_parameters(
    handler: Callable[..., Any], arguments: list[str], request_name: str | None, by_name: bool
) -> None:
    found = signature_of(handler)
    assert ([one.name for one in found.arguments], found.request, found.by_name) == (arguments, request_name, by_name)


class Clock(iris.Service, cluster="clock"):
    @iris.operation
    async def now(self) -> str:
        return "noon"


async def test_an_operation_without_parameters_takes_no_payload(autojump_clock: MockClock) -> None:
    plain = iris.Service("plain")

    @plain.request
    async def hello() -> str:
        return "hello"

    async with (
        iris.testing.open_network() as network,
        network.open_node("clock") as member,
        network.open_node("app") as app,
        member.join("clock", Clock()),
        member.join("plain", plain),
    ):
        await app.wait_for("clock")
        await app.wait_for("plain")
        client = Clock.client(app)
        assert await client.now() == "noon"
        empties: list[Any] = [None, b"", "", {}]
        for empty in empties:
            assert await app.request("clock", empty, operation="now") == "noon"
            assert await app.request("plain", empty) == "hello"
        full: list[Any] = [1, 0, False, [], "x", {"a": 1}]
        for given in full:
            with pytest.raises(iris.RemoteError, match="the operation takes nothing"):
                await app.request("clock", given, operation="now")
        with pytest.raises(TypeError, match=r"now\(\) -> str: too many positional arguments"):
            await client.now("x")  # type: ignore[call-arg]
        described = await app.request("clock", None, operation="iris.describe")
        assert described["operations"]["now"]["signature"] == "() -> str"
        channels = Clock().asyncapi()["channels"]
        assert channels["now"]["messages"]["request"]["payload"] == {"type": "null"}
