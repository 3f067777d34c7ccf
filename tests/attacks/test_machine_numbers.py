"""Numbers that nobody meant: each is refused in one short line that names the option, and takes nothing away."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import iris
from iris.doors import grant
from iris.doors.tokens import load_tokens
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import open_network

HUGE = 10**5000
"""Python shows no number of so many digits: to put it into a text is an error of its own."""

NONE_OF_THESE: tuple[Any, ...] = (
    math.nan, -1, -HUGE, np.timedelta64(3, "s"), np.array([1, 2]), Decimal("sNaN"), Decimal("NaN"), Fraction(-HUGE, 7),
    "3", "x" * 100_000, b"3", 3j, True,
)  # fmt: skip

Call = Callable[[iris.Node, Path, Any], Any]


def within(
    enter: Callable[[iris.Node, Any], AbstractAsyncContextManager[Any]],
    do: Callable[[Any, Any], Any] | None = None,
) -> Call:
    async def call(node: iris.Node, _: Path, value: Any) -> None:
        async with enter(node, value) as inside:
            if do is not None:
                came = do(inside, value)
                if inspect.isawaitable(came):
                    await came

    return call


CALLS: dict[str, Call] = {
    "timeout": lambda node, _, value: node.request("shop", 1, timeout=value),
    "hedge": lambda node, _, value: node.request("shop", 1, options=iris.RequestOptions(idempotent=True, hedge=value)),
    "wait": lambda node, _, value: node.request("shop", 1, wait=value),
    "wait ": lambda node, _, value: node.broadcast("shop", 1, wait=value),
    "wait  ": within(lambda node, value: node.survey("shop", 1, wait=value)),
    "wait   ": within(lambda node, value: node.open_tunnel("shop", wait=value)),
    "count": within(lambda node, value: node.survey("shop", 1, count=value)),
    "quiet": within(lambda node, value: node.survey("shop", 1, quiet=value)),
    "expires": lambda node, _, value: node.publish("news", 1, expires=value),
    "expires ": lambda _, path, value: grant(path / "tokens", "web", expires=value),
    "attempts": within(lambda node, value: node.bridge().queue("q", attempts=value)),
    "backoff": within(lambda node, value: node.bridge().queue("q", backoff=value)),
    "max_bytes": within(lambda node, value: node.state("prices", max_bytes=value)),
    "max_bytes ": within(
        lambda node, _: node.open_tunnel("shop"), lambda tunnel, value: tunnel.receive_file("f", max_bytes=value)
    ),
    "members": lambda node, _, value: node.wait_for("shop", value),
    "members ": within(lambda node, _: node.state("prices"), lambda state, value: state.settled(value)),
    "max_events": within(lambda node, _: node.subscribe("news"), lambda events, value: events.receive_batch(value)),
    "settle": lambda node, _, value: node.books(settle=value),
    "every": lambda node, _, value: node.watch_losses(every=value),
    "ttl": within(lambda node, value: node.bridge().lease("one", ttl=value)),
    "keep": lambda _, __, value: iris.Outcomes(keep=value),
    "events": lambda _, __, value: iris.SubscriptionLimits(events=value),
    "queue": lambda _, __, value: iris.Limits(queue=value),
    "max_payload": lambda _, __, value: iris.Config(max_payload=value),
    "rate": within(lambda node, value: open_gateway(node, listen=["mem://g"], policy=Policy(), rate=value)),
    "min_copies": lambda node, path, value: within(
        lambda node, value: open_bridge(node, topics=["t"], directory=path / "log", min_copies=value)
    )(node, path, value),
    "shards": lambda node, path, value: within(
        lambda node, value: open_bridge(node, topics=["t"], directory=path / "log", shards=[value])
    )(node, path, value),
    "shards ": lambda node, path, value: within(
        lambda node, value: open_bridge(node, topics=["t"], directory=path / "log", of=value)
    )(node, path, value),
}
"""Cases by the option that the error names; blanks distinguish several of one name."""


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
async def test_a_number_that_is_none_is_refused_in_one_short_line_that_names_its_option(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    service = iris.Service("shop")

    @service.request
    async def reply(request: iris.Request) -> object:
        return request.payload

    @service.tunnel
    async def hold(tunnel: iris.Tunnel) -> None:
        await tunnel.receive()

    async with (
        open_network(seed=1) as network,
        network.open_node("shop") as shop,
        shop.join("shop", service),
        network.open_node("desk", site="eu" if name == "rate" else None) as desk,
    ):
        if name != "rate":
            await desk.wait_for("shop")
        for value in NONE_OF_THESE:
            with pytest.raises(iris.ConfigError) as refused, trio.fail_after(5):  # noqa: PT012
                came = CALLS[name](desk, tmp_path, value)
                if inspect.isawaitable(came):
                    await came
            assert name.strip() in str(refused.value)
            assert len(str(refused.value)) < 300


async def test_a_number_that_is_none_costs_a_subscriber_no_event(autojump_clock: MockClock) -> None:
    async with open_network(seed=2) as network, network.open_node("desk") as desk, desk.subscribe("news") as events:
        await desk.publish("news", "it rains")
        for value in (0, -1, "3", math.nan, None):
            with pytest.raises(iris.ConfigError, match="max_events"):
                await events.receive_batch(value)  # type: ignore[arg-type]
        with trio.fail_after(1):
            assert [event.payload for event in await events.receive_batch(np.int64(5))] == ["it rains"]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, 10**400, 1e300, "2030-01-01"])
def test_a_date_that_is_none_leaves_the_tokens_of_the_others_readable(tmp_path: Path, value: Any) -> None:
    grant(tmp_path / "tokens", "web", call=(">",))
    with pytest.raises(iris.ConfigError, match="expires"):
        grant(tmp_path / "tokens", "other", call=(">",), expires=value)
    assert list(load_tokens(tmp_path / "tokens")) == ["web"]
    grant(tmp_path / "tokens", "later", call=(">",), expires=np.float32(2e9))  # type: ignore[arg-type]
    assert list(load_tokens(tmp_path / "tokens")) == ["web", "later"]
