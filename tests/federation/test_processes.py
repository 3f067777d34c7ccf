"""Gateways in processes of their own, linked over ws on loopback: the command, the real network, the real clock."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import trio

import iris
from iris.node.open import open_parts
from tests.support.command import Terminal, interrupt
from tests.support.federations import echo, free_gateway_url, wait_for_sites


async def test_two_gateways_over_ws_carry_requests_tunnels_and_events(terminal: Terminal) -> None:
    east, west = free_gateway_url(), free_gateway_url()
    lists = ("--export", ">", "--export-topic", "orders.>")
    near, far = terminal.directory / "near.json", terminal.directory / "far.json"
    with (
        terminal.started("gateway", "--site", "east", "--listen", east, "--status", str(near), *lists) as one,
        terminal.started(
            "gateway", "--site", "west", "--listen", west, "--peer", east, "--status", str(far), *lists
        ) as other,
    ):
        await wait_for_sites(near, "west")
        await wait_for_sites(far, "east")
        async with (
            iris.open_node("store", site="east") as store,
            store.join("store", echo("store")),
            open_parts("shop", site="west") as (shop, parts),
        ):
            await shop.wait_for("store", timeout=60)
            assert await shop.request("store", b"over there", timeout=60) == b"over there"
            assert shop.members("store")[0].site == "east"
            async with shop.open_tunnel("store", timeout=60) as tunnel:
                for number in range(100):
                    await tunnel.send(bytes([number]) * 10_000)
                await tunnel.send_eof()
                assert [len(payload) async for payload in tunnel] == [10_000] * 100
            async with store.subscribe("orders.*") as events:
                with trio.fail_after(60):
                    assert parts.sites is not None
                    while not parts.sites.directory.subscribers():  # noqa: ASYNC110 -- of other processes
                        await trio.sleep(0.05)
                    await shop.publish("orders.new", 1)
                    assert (await anext(events)).payload == 1
            links = shop.statistics().links.keys()
            assert store.id in links
            assert len(links) == 2, "its gateway, and the store by way of it"
        for process in (one, other):
            status = await trio.to_thread.run_sync(interrupt, process, signal.SIGTERM)
            assert process.stderr is not None
            assert status == 0, process.stderr.read().decode()


async def test_the_way_of_a_request_through_two_gateways(terminal: Terminal) -> None:
    east, west = free_gateway_url(), free_gateway_url()
    near, far = terminal.directory / "near.json", terminal.directory / "far.json"

    async def trace(*options: str) -> subprocess.CompletedProcess[bytes]:
        return await trio.to_thread.run_sync(
            lambda: terminal.run("trace", "store", "--site", "west", "--wait", "60", *options)
        )

    with (
        terminal.started("gateway", "--site", "east", "--listen", east, "--status", str(near), "--export", ">"),
        terminal.started("gateway", "--site", "west", "--listen", west, "--peer", east, "--status", str(far)),
    ):
        await wait_for_sites(near, "west")
        await wait_for_sites(far, "east")
        async with iris.open_node("store", site="east") as store, store.join("store", echo("store")):
            done = await trace("-o", "json")
            assert done.returncode == 0, done.stderr.decode()
            found: dict[str, Any] = json.loads(done.stdout)
            assert (found["member"], found["site"], found["error"]) == (store.id, "east", None)
            assert [(hop["kind"], hop["site"]) for hop in found["hops"]] == [
                ("gateway", "west"),
                ("gateway", "east"),
                ("member", "east"),
            ]
            assert all(0 < hop["round_trip"] < 60 for hop in found["hops"])
            assert 0 <= found["waited"] + found["ran"] <= found["taken"]
            table = await trace("hello")
            lines = [line.split("\t") for line in table.stdout.decode().splitlines()]
            assert lines[0] == ["hop", "node", "site", "kind", "round trip"]
            assert [line[2:4] for line in lines[1:4]] == [["west", "gateway"], ["east", "gateway"], ["east", "member"]]
            assert [line[0] for line in lines[4:]] == ["request", "waited for a handler", "handler", "trace"]
            failed = await trace("--operation", "missing", "-o", "json")
            assert failed.returncode == 1
            assert b"does not serve the operation 'missing'" in failed.stderr
            assert json.loads(failed.stdout)["member"] == store.id


def test_the_local_realm_has_no_gateway_for_others(terminal: Terminal) -> None:
    done = terminal.run("gateway", "--site", "east", "--listen", "ws://0.0.0.0:1/gateway")
    assert done.returncode == 2
    assert b"this machine only" in done.stderr


def test_what_is_no_pattern_is_one_line(terminal: Terminal) -> None:
    done = terminal.run("gateway", "--site", "east", "--listen", "ws://127.0.0.1:1/gateway", "--export", "a..b")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"a..b" in done.stderr
