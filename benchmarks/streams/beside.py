"""Requests while a transfer runs: by turns with and without it, in one run of the same two processes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

import trio

import iris
from benchmarks.streams.nodes import CLUSTER, LOOPBACK, percentile, tcp_address
from benchmarks.streams.processes import open_run, say
from benchmarks.streams.table import heading, row

_PIECE: Final = 256 * 1024


async def _member(_: Mapping[str, Any]) -> None:
    service = iris.Service(CLUSTER)

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @service.tunnel
    async def drain(tunnel: iris.Tunnel) -> None:
        async for _ in tunnel:
            pass

    async with iris.open_node(CLUSTER, listen=LOOPBACK) as node, node.join(CLUSTER, service):
        say(ready=tcp_address(node))
        await trio.sleep_forever()


async def _ask(node: iris.Node, end: float, pause: float, seconds: list[float]) -> None:
    payload = bytes(128)
    while (before := perf_counter()) < end:
        await node.request(CLUSTER, payload, timeout=30)
        seconds.append(perf_counter() - before)
        if pause:
            await trio.sleep(pause)


async def _measure(node: iris.Node, task: Mapping[str, Any]) -> list[float]:
    seconds: list[float] = []
    end = perf_counter() + task["seconds"]
    async with trio.open_nursery() as nursery:
        for _ in range(task["callers"]):
            nursery.start_soon(_ask, node, end, task["pause"], seconds)
    return seconds


async def _caller(task: Mapping[str, Any]) -> None:
    async with iris.open_node(listen=LOOPBACK, seeds=[task["seed"]]) as node:
        await node.wait_for(CLUSTER)
        await _measure(node, task)  # warms up
        for _ in range(task["rounds"]):
            say(round=await _round(node, task))


async def _round(node: iris.Node, task: Mapping[str, Any]) -> dict[str, Any]:
    alone = await _measure(node, task)
    sent = 0
    piece = bytes(_PIECE)

    async def transfer() -> None:
        nonlocal sent
        async with node.open_tunnel(CLUSTER) as tunnel:
            while True:
                await tunnel.send(piece)
                sent += _PIECE

    async with trio.open_nursery() as nursery:
        for _ in range(task["transfers"]):
            nursery.start_soon(transfer)
        await trio.sleep(0.3)  # the transfers find their pace
        began, before = perf_counter(), sent
        beside = await _measure(node, task)
        rate = (sent - before) / (perf_counter() - began)
        nursery.cancel_scope.cancel()
    await trio.sleep(0.2)
    return {
        "rate": rate,
        "alone": {"p50": percentile(alone, 0.5), "p99": percentile(alone, 0.99), "count": len(alone)},
        "beside": {"p50": percentile(beside, 0.5), "p99": percentile(beside, 0.99), "count": len(beside)},
    }


ROLES = {"member": _member, "caller": _caller}


def conduct(*, quick: bool) -> None:
    """Measure with one caller at a time and with many, beside one transfer and beside several."""
    heading(
        "Requests of 128 bytes beside transfers: median of the rounds, and least - greatest ratio of a round",
        "callers, transfers",
        "alone p50, p99",
        "beside p50, p99",
        "p99 ratio",
        "transfer",
    )
    rounds, seconds = (2, 1.0) if quick else (7, 2.0)
    for callers, pause, transfers in ((1, 0.0, 1), (8, 0.005, 1), (64, 0.0, 1), (8, 0.005, 8)):
        with open_run() as run:
            member = run.start("beside", "member")
            caller = run.start(
                "beside",
                "caller",
                seed=member.hear("ready"),
                callers=callers,
                pause=pause,
                transfers=transfers,
                rounds=rounds,
                seconds=seconds,
            )
            results = [caller.hear("round") for _ in range(rounds)]
        ratios = [one["beside"]["p99"] / one["alone"]["p99"] for one in results]
        row(
            f"{callers}{f' every {pause * 1000:g} ms' if pause else ''}, {transfers}",
            _latency(results, "alone"),
            _latency(results, "beside"),
            f"{statistics.median(ratios):.1f} ({min(ratios):.1f} - {max(ratios):.1f})",
            f"{statistics.median(one['rate'] for one in results) / 2**20:.0f} MiB/s",
        )


def _latency(results: list[dict[str, Any]], which: str) -> str:
    p50, p99 = (statistics.median(one[which][name] for one in results) * 1000 for name in ("p50", "p99"))
    return f"{p50:.2f}, {p99:.2f} ms"
