"""Memory of tunnels: a thousand idle ones, one with a transfer of any size, one whose reader has stopped."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

import trio

import iris
from benchmarks.streams.nodes import CLUSTER, LOOPBACK, tcp_address, wait_told
from benchmarks.streams.processes import open_run, resident, say
from benchmarks.streams.table import heading, row

MIB: Final = 2**20
_PIECE: Final = 256 * 1024


async def _member(_: Mapping[str, Any]) -> None:
    service = iris.Service(CLUSTER)
    going_on = trio.Event()

    @service.tunnel
    async def echo(tunnel: iris.Tunnel) -> None:
        async for payload in tunnel:
            await tunnel.send(payload)

    @service.tunnel("read")
    async def read(tunnel: iris.Tunnel) -> None:
        async for _payload in tunnel:
            pass

    @service.tunnel("stop")
    async def stop(tunnel: iris.Tunnel) -> None:
        await tunnel.receive()
        await going_on.wait()
        async for _payload in tunnel:
            pass

    async with iris.open_node(CLUSTER, listen=LOOPBACK) as node, node.join(CLUSTER, service):
        say(ready=tcp_address(node))
        await wait_told()
        going_on.set()
        await trio.sleep_forever()


async def _opener(task: Mapping[str, Any]) -> None:
    async with iris.open_node(listen=LOOPBACK, seeds=[task["seed"]]) as node:
        await node.wait_for(CLUSTER)
        async with node.open_tunnel(CLUSTER) as tunnel:
            await tunnel.send(bytes(_PIECE))  # everything that is made once is made now
            await tunnel.receive()
        gc.collect()
        say(ready=True)
        await wait_told()
        await {"open": _open_many, "read": _transfer, "stop": _transfer_to_stopped}[task["work"]](node, task["task"])
        await wait_told()


async def _open_many(node: iris.Node, task: Mapping[str, Any]) -> None:
    """Open tunnels, use each of them once, and leave them open."""
    async with trio.open_nursery() as nursery:

        async def hold(task_status: trio.TaskStatus[None]) -> None:
            async with node.open_tunnel(CLUSTER, timeout=30) as tunnel:
                await tunnel.send(b"hello")
                await tunnel.receive()
                task_status.started()
                await trio.sleep_forever()

        began = perf_counter()
        for _ in range(task["count"]):
            await nursery.start(hold)
        say(done=perf_counter() - began, open=node.statistics().tunnels.open)
        await wait_told()
        nursery.cancel_scope.cancel()


async def _transfer(node: iris.Node, task: Mapping[str, Any]) -> None:
    """Send many bytes."""
    began = perf_counter()
    held = 0
    async with node.open_tunnel(CLUSTER, operation="read") as tunnel:
        for _ in range(task["bytes"] // _PIECE):
            await tunnel.send(bytes(_PIECE))
            held = max(held, tunnel.statistics().bytes_held)
    say(done=perf_counter() - began, held=held)


async def _transfer_to_stopped(node: iris.Node, task: Mapping[str, Any]) -> None:
    """Send for some seconds to one who does not read, and then everything to one who does."""
    sent = 0
    async with node.open_tunnel(CLUSTER, operation="stop") as tunnel:
        with trio.move_on_after(task["seconds"]):
            while True:
                await tunnel.send(bytes(_PIECE))
                sent += _PIECE
        say(done=0.0, held=tunnel.statistics().bytes_held, sent=sent)
        await wait_told()


ROLES = {"member": _member, "opener": _opener}


def _work(work: str, **task: float) -> tuple[dict[str, Any], int, int]:
    """Run one opener against one member; return what it said, and what both processes grew by at most."""
    with open_run() as run:
        member = run.start("memory", "member")
        opener = run.start("memory", "opener", seed=member.hear("ready"), work=work, task=task)
        opener.hear("ready")
        before = [resident(one.pid) for one in (opener, member)]
        opener.tell()
        said = opener.hear_line("done", 3600)
        most = [resident(one.pid, "VmHWM") for one in (opener, member)]
        return said, most[0] - before[0], most[1] - before[1]


def conduct(*, quick: bool) -> None:
    """Measure the growth of both processes."""
    heading("Memory of tunnels: growth of resident memory at most", "what", "opener", "member", "held by the sender")
    count = 1000
    said, opener, member = _work("open", count=count)
    row(f"{count:,} open tunnels, each used once", _mib(opener), _mib(member), f"opened in {said['done']:.1f} s")
    for size in (16, 128) if quick else (64, 1024, 4096):
        said, opener, member = _work("read", bytes=size * MIB)
        rate = f"{_mib(said['held'])}, {size / said['done']:.0f} MiB/s"
        row(f"one transfer of {size:,} MiB", _mib(opener), _mib(member), rate)
    seconds = 1.0 if quick else 20.0
    said, opener, member = _work("stop", seconds=seconds)
    row(
        f"a receiver that stops reading, after {seconds:g} s",
        _mib(opener),
        _mib(member),
        f"{_mib(said['held'])} after {_mib(said['sent'])}",
    )


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
