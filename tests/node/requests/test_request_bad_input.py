"""Bad input to requests, from callers, members and peers: each has its error, and touches nothing else."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import pytest
import trio
from msgspec.msgpack import Ext
from trio.testing import MockClock

import iris
from iris.kernel.wire import kinds
from tests.support.meshes import MeshNode, open_meshes
from tests.support.messages import array, raw
from tests.support.request_arguments import request_arguments
from tests.support.scheduling import let_threads_run
from tests.support.stages import open_stage


def make_store() -> iris.Service:
    """A service that echoes; ``wait`` needs half a second for it."""
    store = iris.Service("store")

    @store.request
    async def give_back(request: iris.Request) -> object:
        return request.payload

    @store.request("wait")
    async def wait(request: iris.Request) -> object:
        await trio.sleep(0.5)
        return request.payload

    return store


# -- from callers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0, -1, -0.0, -math.inf, math.nan, True, None, "1"])
async def test_a_timeout_that_is_none_is_refused_before_anything_is_sent(
    autojump_clock: MockClock, timeout: Any
) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(make_store())
        with pytest.raises(iris.ConfigError, match="use seconds above 0"):
            await shop.request("store", timeout=timeout)
        with pytest.raises(iris.ConfigError, match="use seconds above 0"):
            shop.survey("store", b"", timeout=timeout)
        assert shop.statistics().requests.sent == 0
        assert await shop.request("store", 1) == 1


@pytest.mark.parametrize("timeout", [1e-9, 1e-3, 1e9, 10**400, math.inf])
async def test_the_shortest_and_the_longest_timeouts_mean_what_they_say(
    autojump_clock: MockClock, timeout: float
) -> None:
    async with open_stage(latency=(0.001, 0.001)) as stage:
        _, shop = await stage.pair(make_store())
        began = trio.current_time()
        if timeout < 0.5:
            with pytest.raises(iris.RequestTimeout):
                await shop.request("store", 1, operation="wait", timeout=timeout)
            assert trio.current_time() - began <= timeout + 1e-6
        else:
            assert await shop.request("store", 1, operation="wait", timeout=timeout) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": ""}, {"cluster": "a b"}, {"cluster": "x" * 129}, {"cluster": None}, {"operation": ""},
        {"operation": "a/b"}, {"operation": 3}, {"priority": "highest"}, {"priority": 1}, {"hedge": 0.1},
        {"hedge": -1, "idempotent": True}, {"hedge": math.nan, "idempotent": True},
    ],
)  # fmt: skip
async def test_names_and_options_that_cannot_be_are_refused_before_anything_is_sent(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    async with open_stage() as stage:
        _, shop = await stage.pair(make_store())
        arguments: dict[str, Any] = {"cluster": "store", **options}
        with pytest.raises(iris.ConfigError):
            await shop.request(arguments.pop("cluster"), 1, **request_arguments(**arguments))
        assert shop.statistics().requests.sent == 0
        assert await shop.request("store", 1) == 1


# -- from members that answer as they should not -------------------------------------------------------------


async def answer(member: MeshNode, caller: MeshNode, number: int, payload: object = b"forged") -> None:
    member.mesh.post(caller.id, raw(kinds.Reply, number, payload), 8)
    await trio.sleep(0.01)


async def test_answers_that_come_late_twice_or_from_others_change_nothing(autojump_clock: MockClock) -> None:
    async with open_meshes("shop", "member", "other") as fleet:
        shop, member, other = fleet["shop"], fleet["member"], fleet["other"]
        async with member.serve(make_store()), trio.open_nursery() as nursery:
            replies: list[object] = []

            async def ask() -> None:
                replies.append(await shop.request("store", 7, timeout=5, operation="wait"))

            nursery.start_soon(ask)
            await trio.sleep(0.1)
            await answer(other, shop, 1)  # was not asked
            await answer(member, shop, 99)  # was asked something else
            assert replies == []
            await trio.sleep(0.5)
            assert replies == [7]
            await answer(member, shop, 1)  # twice
            with pytest.raises(iris.RequestTimeout):
                await shop.request("store", 8, timeout=0.1, operation="wait")
            await answer(member, shop, 2)  # late
            assert await shop.request("store", 9, timeout=5) == 9
            assert replies == [7]
            assert shop.mesh.refusals == {}


async def test_of_two_different_answers_the_first_counts(autojump_clock: MockClock) -> None:
    async with open_meshes("shop", "member") as fleet:
        shop, member = fleet["shop"], fleet["member"]
        async with member.serve(make_store()), trio.open_nursery() as nursery:

            async def ask() -> None:
                assert await shop.request("store", 7, timeout=5, operation="wait") == b"forged"

            nursery.start_soon(ask)
            await trio.sleep(0.1)
            await answer(member, shop, 1)
            await trio.sleep(1)  # the true one comes as well
            assert await shop.request("store", 9, timeout=5) == 9


@pytest.mark.parametrize(
    "message",
    [
        raw(kinds.Reply, 1, "text"), raw(kinds.Reply, 1, None), raw(kinds.Reply, 1),
        raw(kinds.Failure, 1, 5, "text", 0), raw(kinds.Failure, 1, "code", None, 0),
        raw(kinds.Failure, 1, "code", "text", 0.5),
    ],
)  # fmt: skip
async def test_a_malformed_answer_is_counted_and_the_true_one_is_taken(
    autojump_clock: MockClock, message: tuple[Any, ...]
) -> None:
    async with open_meshes("shop", "member") as fleet:
        shop, member = fleet["shop"], fleet["member"]
        async with member.serve(make_store()), trio.open_nursery() as nursery:

            async def ask() -> None:
                assert await shop.request("store", 7, timeout=5, operation="wait") == 7

            nursery.start_soon(ask)
            await trio.sleep(0.1)
            member.mesh.post(shop.id, array(*message), 8)
            await trio.sleep(0.01)
            assert shop.mesh.refusals.total() == 1


# -- from callers that ask as they should not ----------------------------------------------------------------

FIELDS: tuple[Any, ...] = raw(kinds.Request, 1, "store", None, 1000, 0, None, b"payload")
NESTED: tuple[Any, ...] = functools.reduce(lambda inner, _: (inner,), range(400), ())
"""Deep, and no text."""


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (1, "one"), (1, None), (1, 1.5), (2, 5), (2, None), (3, 5), (3, NESTED),
        (6, ("a", 1)), (6, "text"), (4, "soon"), (4, -1), (4, 1.5),
        (4, None), (5, None), (5, "x"), (7, "text"), (7, None), (7, 5),
    ],
)  # fmt: skip
async def test_a_malformed_request_is_refused_and_the_next_is_served(
    autojump_clock: MockClock, at: int, value: object
) -> None:
    async with open_meshes("shop", "member") as fleet:
        shop, member = fleet["shop"], fleet["member"]
        async with member.serve(make_store()) as membership:
            fields = list(FIELDS)
            fields[at] = value
            shop.mesh.post(member.id, array(*fields), 8)
            await trio.sleep(0.1)
            statistics = membership.statistics()
            assert (statistics.served, statistics.running) == (0, 0)
            assert await shop.request("store", 9, timeout=5) == 9


async def test_what_is_said_of_an_operation_that_is_not_served_is_short(autojump_clock: MockClock) -> None:
    async with open_meshes("shop", "member") as fleet:
        shop, member = fleet["shop"], fleet["member"]
        async with member.serve(make_store()):
            with pytest.raises(iris.RemoteError, match="no_such_operation") as caught:
                await shop.request("store", 1, timeout=5, operation="\0" * 2**20)
            assert len(caught.value.message) <= 1024


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (6, ("odd",)), (6, ("a", "1", "a", "2")), (7, Ext(1, b"\xc1")),
    ],
)  # fmt: skip
async def test_headers_and_payloads_that_cannot_be_read_are_told_to_who_sent_them(
    autojump_clock: MockClock, at: int, value: object
) -> None:
    async with open_meshes("shop", "member") as fleet:
        shop, member = fleet["shop"], fleet["member"]
        async with member.serve(make_store()) as membership:
            fields = list(FIELDS)
            fields[at] = value
            shop.mesh.post(member.id, array(*fields), 8)
            await trio.sleep(0.1)
            assert membership.statistics().failed == 1
            assert await shop.request("store", 9, timeout=5) == 9


@pytest.mark.parametrize("flags", [0b110, 0b1000, 2**40])
async def test_flags_of_a_later_version_are_no_trouble(autojump_clock: MockClock, flags: int) -> None:
    async with open_meshes("shop", "member") as fleet:
        shop, member = fleet["shop"], fleet["member"]
        async with member.serve(make_store()) as membership:
            shop.mesh.post(member.id, array(*FIELDS[:5], flags, *FIELDS[6:]), 8)
            await trio.sleep(0.1)
            assert membership.statistics().served == 1


# -- from handlers that fail as they should not --------------------------------------------------------------


class Silent(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (FileNotFoundError("no file caf\udce9"), "error", r"FileNotFoundError: no file caf\udce9"),
        (Silent(), "error", "Silent: a Silent without a text"),
        (iris.RemoteError(404, None), "404", "None"),  # type: ignore[arg-type]
        (iris.RemoteError("caf\udce9", "\ud800"), r"caf\udce9", r"\ud800"),
        (iris.NotSent("\udce9"), "NotSent", r"\udce9"),
    ],
)
@pytest.mark.parametrize("tracebacks", [False, True])
async def test_an_error_whose_text_cannot_travel_is_the_callers_like_any_other(
    autojump_clock: MockClock, error: Exception, code: str, text: str, tracebacks: bool
) -> None:
    store = iris.Service("store", tracebacks=tracebacks)

    @store.request
    async def fail(request: iris.Request) -> object:
        if request.payload:
            return request.payload
        raise error

    async with open_stage() as stage:
        member, shop = await stage.pair(store)
        with pytest.raises(iris.RemoteError) as caught:
            await shop.request("store", 0)
        assert caught.value.code == code
        assert caught.value.message.split("\n")[0] == text
        assert await shop.request("store", 1) == 1
        assert member.statistics().services["store"].failed == 1


class NoError(BaseException):
    """No ``Exception``, like the cancellation of asyncio, which a handler that runs it in a thread may raise."""


@pytest.mark.parametrize(
    "error",
    [
        NoError("mine"),
        BaseExceptionGroup("mine", [NoError()]),
        GeneratorExit("mine"),
        BaseExceptionGroup("mine", [GeneratorExit(), ValueError()]),
    ],
)
async def test_a_handler_that_raises_what_is_no_error_ends_nothing_else(
    autojump_clock: MockClock, error: BaseException
) -> None:
    store = make_store()

    @store.request("async")
    async def fail(_: iris.Request) -> object:
        raise error

    @store.request("def")
    @store.request("thread", thread=True)
    def fail_at_once(_: iris.Request) -> object:
        raise error

    @store.broadcast
    async def fail_to_hear(_: iris.Message) -> None:
        raise error

    @store.tunnel
    async def fail_to_talk(_: iris.Tunnel) -> None:
        raise error

    async with open_stage() as stage:
        member, shop = await stage.pair(store)
        let_threads_run(autojump_clock)
        for operation in ("async", "def", "thread"):
            with pytest.raises(iris.RemoteError, match=f"error: {type(error).__name__}: mine"):
                await shop.request("store", operation=operation)
        await shop.broadcast("store", 1)
        with pytest.raises(iris.TunnelBroken):
            async with shop.open_tunnel("store") as tunnel:
                await tunnel.receive()
        assert await shop.request("store", 1) == 1
        service = member.statistics().services["store"]
        assert (service.failed, service.broadcasts_failed, service.tunnels_failed) == (3, 1, 1)


@pytest.mark.parametrize("cancel", [False, True])
async def test_a_task_of_a_handler_that_fails_while_it_is_cancelled_ends_nothing_else(
    autojump_clock: MockClock, cancel: bool
) -> None:
    store = make_store()

    async def tidy_up_badly() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("the connection was closed already")

    @store.request("nursery")
    async def work(_: iris.Request) -> object:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tidy_up_badly)
            await trio.sleep_forever()

    async with open_stage() as stage:
        member, shop = await stage.pair(store)
        for _ in range(3):
            if cancel:
                with trio.move_on_after(0.1), contextlib.suppress(iris.RemoteError):
                    await shop.request("store", operation="nursery")
            else:  # the member's clock may be the first one to ring
                with pytest.raises((iris.RequestTimeout, iris.RemoteError)):
                    await shop.request("store", operation="nursery", timeout=0.1)
            await trio.sleep(0.1)
            assert await shop.request("store", 1) == 1
        assert member.statistics().services["store"].failed == 3


async def kept_cancellation() -> BaseException:
    """Return what a scope that has ended was cancelled with, as who waits for another's outcome may come by it."""
    kept: BaseException | None = None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            kept = error
            raise
    assert kept is not None
    return kept


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_handler_that_raises_a_cancellation_of_long_ago_ends_nothing_else(
    autojump_clock: MockClock, grouped: bool
) -> None:
    """The nursery of the workers would take it for its own, and end without a word: nothing would be served again."""
    store = make_store()
    kept = await kept_cancellation()

    @store.request("fail")
    @store.broadcast
    async def fail(_: Any) -> None:
        raise BaseExceptionGroup("mine", [kept]) if grouped else kept

    async with open_stage() as stage:
        member, shop = await stage.pair(store)
        for _ in range(2):
            with pytest.raises(iris.RemoteError, match="error: "):
                await shop.request("store", operation="fail", timeout=60)
            await shop.broadcast("store", 1)
        assert await shop.request("store", 1) == 1
        service = member.statistics().services["store"]
        assert (service.failed, service.broadcasts_failed, service.cancelled) == (2, 2, 0)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize(
    "code", ["overloaded", "draining", "not_a_member", "not_allowed", "expired", "member_left", "not_here"]
)
async def test_the_code_of_a_handler_is_never_taken_for_a_word_of_its_member(
    autojump_clock: MockClock, code: str, idempotent: bool
) -> None:
    """It would be run again elsewhere, or be said not to have run, or its caller would wait for ever."""
    store, ran = iris.Service("store"), 0

    @store.request
    async def fail(_: iris.Request) -> object:
        nonlocal ran
        ran += 1
        raise iris.RemoteError(code, "mine")

    async with open_stage() as stage:
        await stage.member(store, "another")
        _, shop = await stage.pair(store)
        await shop.wait_for("store", 2)
        with pytest.raises(iris.RemoteError) as caught:
            await shop.request("store", timeout=60, options=iris.RequestOptions(idempotent=idempotent))
        assert (caught.value.code, caught.value.message, ran) == (code, "mine", 1)
        async with shop.survey("store", b"") as answers:
            assert [answer async for answer in answers] == []
        assert [str(error) for error in answers.errors.values()] == 2 * [f"{code}: mine"]
