"""Errors of handlers are logged where they happened: with a traceback, the caller, and at a readable rate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.testing import open_network
from tests.support.scheduling import let_threads_run

LOGGER = "iris.handlers"
PAYLOAD = "the payload is nobody else's business"


def failing() -> iris.Service:
    service = iris.Service("failing")

    @service.request
    async def fail(request: iris.Request) -> object:
        raise KeyError("no such row")

    @service.request("group")
    async def fail_in_a_nursery(request: iris.Request) -> None:
        async def fail_inside() -> None:
            raise ValueError("inside")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_inside)

    @service.request("thread", thread=True)
    def fail_in_a_thread(request: iris.Request) -> object:
        raise OSError("no such disk")

    @service.request("unsendable")
    async def answer_with_what_cannot_be_sent(request: iris.Request) -> object:
        return object()

    @service.request("answer")
    async def answer_with_an_error(request: iris.Request) -> object:
        raise iris.RemoteError("no_such_row", f"there is no row {request.payload}")

    @service.request("slow")
    async def never_end(request: iris.Request) -> object:
        await trio.sleep_forever()

    @service.broadcast
    async def fail_to_hear(message: iris.Message) -> None:
        raise LookupError("no such cache")

    @service.tunnel
    async def fail_to_talk(tunnel: iris.Tunnel) -> None:
        raise ZeroDivisionError("no such part")

    @service.tunnel("listen")
    async def listen(tunnel: iris.Tunnel) -> None:
        async for _ in tunnel:
            pass

    return service


@asynccontextmanager
async def a_caller_of(service: iris.Service) -> AsyncIterator[iris.Node]:
    async with (
        open_network(seed=1) as network,
        network.open_node("failing") as member,
        network.open_node("shop") as shop,
        member.join("failing", service),
    ):
        await shop.wait_for("failing")
        yield shop


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> Sequence[logging.LogRecord]:
    return [record for record in caplog.records if record.name == LOGGER and record.levelno == level]


@pytest.mark.parametrize(
    ("operation", "error", "line"),
    [
        (None, KeyError, 'raise KeyError("no such row")'),
        ("group", ExceptionGroup, 'raise ValueError("inside")'),
        ("thread", OSError, 'raise OSError("no such disk")'),
        ("unsendable", iris.LocalProtocolError, "cannot send a object"),
    ],
)
async def test_a_request_handler_that_raises_is_logged_with_its_traceback_and_for_whom_it_ran(
    operation: str | None,
    error: type[Exception],
    line: str,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: MockClock,
) -> None:
    if operation == "thread":
        let_threads_run(autojump_clock)
    async with a_caller_of(failing()) as shop:
        with pytest.raises(iris.RemoteError):
            await shop.request("failing", PAYLOAD, operation=operation)
        (record,) = logged(caplog)
        assert record.exc_info is not None
        assert record.exc_info[0] is error
        assert line in caplog.text
        fields = {name: vars(record)[name] for name in ("cluster", "operation", "pattern", "caller", "peer")}
        assert fields == {
            "cluster": "failing",
            "operation": operation,
            "pattern": "request",
            "caller": "shop",
            "peer": shop.id,
        }
        assert type(vars(record)["request_id"]) is int
        said = record.getMessage()
        assert "request" in said
        assert all(repr(field) in said or str(field) in said for field in fields.values() if field is not None)
        assert PAYLOAD not in caplog.text


async def test_so_is_one_that_a_survey_has_asked(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    async with a_caller_of(failing()) as shop:
        async with shop.survey("failing", PAYLOAD) as answers:
            assert [answer async for answer in answers] == []
        (record,) = logged(caplog)
        assert record.exc_info is not None
        assert record.exc_info[0] is KeyError


async def test_a_broadcast_handler_that_raises_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with a_caller_of(failing()) as shop:
        await shop.broadcast("failing", PAYLOAD)
        await trio.sleep(1)
        (record,) = logged(caplog)
        assert record.getMessage().startswith("broadcast handler of cluster 'failing' failed, called by 'shop'")
        assert 'raise LookupError("no such cache")' in caplog.text
        assert PAYLOAD not in caplog.text


async def test_a_tunnel_handler_that_raises_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with a_caller_of(failing()) as shop:
        with pytest.raises(iris.TunnelBroken):
            async with shop.open_tunnel("failing") as tunnel:
                await tunnel.receive()
        (record,) = logged(caplog)
        assert record.getMessage().startswith("tunnel handler of cluster 'failing' failed, called by 'shop'")
        assert 'raise ZeroDivisionError("no such part")' in caplog.text


async def test_a_tunnel_that_its_opener_breaks_is_no_failure_of_its_handler(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    async with a_caller_of(failing()) as shop:
        async with shop.open_tunnel("failing", operation="listen") as tunnel:
            await tunnel.send(PAYLOAD)
            tunnel.abort()
        await trio.sleep(1)
        assert logged(caplog) == []
        (record,) = logged(caplog, logging.DEBUG)
        assert "TunnelBroken" in record.getMessage()
        assert record.exc_info is None


async def test_an_error_that_a_handler_answers_with_is_no_failure(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    async with a_caller_of(failing()) as shop:
        with pytest.raises(iris.RemoteError, match=PAYLOAD):
            await shop.request("failing", PAYLOAD, operation="answer")
        assert logged(caplog) == []
        (record,) = logged(caplog, logging.DEBUG)
        assert record.exc_info is None
        assert "no_such_row" in record.getMessage()
        assert PAYLOAD not in caplog.text


async def test_a_handler_that_is_cut_off_is_no_failure(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    async with a_caller_of(failing()) as shop:
        with pytest.raises(iris.RequestTimeout):
            await shop.request("failing", PAYLOAD, operation="slow", timeout=0.5)
        await trio.sleep(1)
        assert logged(caplog) == logged(caplog, logging.DEBUG) == []


async def test_failures_of_one_cause_are_logged_once_a_second_and_the_others_counted(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with a_caller_of(failing()) as shop:
        for _ in range(10):
            with pytest.raises(iris.RemoteError):
                await shop.request("failing")
            with pytest.raises(iris.RemoteError):
                await shop.request("failing", operation="group")
        assert [vars(record)["operation"] for record in logged(caplog)] == [None, "group"]
        await trio.sleep(1)
        for _ in range(3):
            with pytest.raises(iris.RemoteError):
                await shop.request("failing")
        first, _, later = logged(caplog)
        assert "more" not in first.getMessage()
        assert "9 more of this cause" in later.getMessage()
    left = [record.getMessage() for record in logged(caplog)[3:]]
    assert len(left) == 2
    assert any("2 more" in text for text in left)
    assert any("9 more" in text for text in left)


async def test_a_thread_that_fails_when_nobody_waits_for_it_any_more_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    service, go_on = iris.Service("failing"), threading.Event()

    @service.request(thread=True)
    def fail_late(request: iris.Request) -> object:
        go_on.wait()
        while True:
            try:
                trio.from_thread.check_cancelled()
            except trio.Cancelled:
                raise OSError("too late") from None
            time.sleep(0.001)

    async with a_caller_of(service) as shop:
        with pytest.raises(iris.RequestTimeout):
            await shop.request("failing", PAYLOAD, timeout=0.2)
        assert logged(caplog) == []
        log, written = logging.getLogger(LOGGER), trio.Event()
        log.addFilter(note := lambda _: written.set() or True)
        try:
            go_on.set()
            with trio.fail_after(60):
                await written.wait()
        finally:
            log.removeFilter(note)
        assert 'raise OSError("too late")' in caplog.text
        assert "nobody waits" in logged(caplog)[0].getMessage()


async def test_of_an_error_with_a_long_text_the_log_has_the_beginning_and_the_end(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    service = iris.Service("failing")

    @service.request
    async def fail(request: iris.Request) -> None:
        raise ValueError("x" * 5_000_000)

    async with a_caller_of(service) as shop:
        with pytest.raises(iris.RemoteError):
            await shop.request("failing")
    (record,) = logged(caplog)
    written = logging.Formatter().format(record)
    assert len(written) < 20_000
    assert 'raise ValueError("x" * 5_000_000)' in written
    assert "characters left out" in written
    assert written.endswith("xxx\n")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_when_a_handler_ends_the_program_others_are_told_that_they_were_not_served(
    error: type[BaseException], caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    service = failing()

    @service.request("exit")
    async def end_the_program(request: iris.Request) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise error

    refused: list[iris.IrisError] = []

    async def ask(shop: iris.Node) -> None:
        with pytest.raises(iris.Unknown):
            await shop.request("failing", operation="exit")

    async def ask_later(shop: iris.Node) -> None:
        await trio.sleep(0.5)
        with pytest.raises(iris.NotSent) as caught:
            await shop.request("failing")
        refused.append(caught.value)
        with pytest.raises(iris.NotSent) as caught:
            async with shop.open_tunnel("failing"):
                pass
        refused.append(caught.value)

    async def serve() -> None:
        async with (
            trio.open_nursery() as nursery,
            open_network(seed=2) as network,
            network.open_node("shop") as shop,
            network.open_node("failing") as member,
            member.join("failing", service),
        ):
            await shop.wait_for("failing")
            nursery.start_soon(ask, shop)
            nursery.start_soon(ask_later, shop)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as ended:
        await serve()
    assert ended.value.subgroup(error) is not None
    assert len(refused) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_broadcast_handler_that_ends_the_program_ends_it_and_is_no_failure(
    error: type[BaseException], caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    service = iris.Service("failing")

    @service.broadcast
    async def end_the_program(message: iris.Message) -> None:
        raise error

    async def tell() -> None:
        async with a_caller_of(service) as shop:
            await shop.broadcast("failing", PAYLOAD)
            await trio.sleep(60)

    with pytest.raises(error):
        await tell()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
