"""Two realms in processes of their own, linked over ws on loopback: credentials from files, the command, real time."""

from __future__ import annotations

import pytest
import trio

import iris
from iris.cli.main import run_command
from iris.kernel.errors import NoSuchCluster
from iris.node.open import open_parts
from tests.support.command import Terminal
from tests.support.federations import echo, free_gateway_url, wait_for_sites


async def test_two_owners_federate_over_ws_and_part_again(terminal: Terminal) -> None:
    def keys(*arguments: str) -> None:
        assert run_command(["keys", *arguments]) == 0

    def exchange() -> None:
        for owner in ("ours", "acme"):
            keys("realm", f"{owner}.key")
            lists = ("--export", ">", "--export-topic", "orders.>")
            keys("bundle", f"{owner}.key", "--name", owner, *lists, "--out", f"{owner}.bundle")
        keys("trust", "ours.key", "acme.bundle")
        keys("trust", "acme.key", "ours.bundle", "--as", "partner", "--allow", "shop")
        for owner, cluster in (("ours", "shop"), ("acme", "store")):
            keys("cluster", f"{owner}.key", cluster, "--out", f"{cluster}.iris")
            keys("cluster", f"{owner}.key", "gate", "--gateway", "--out", f"{owner}-gate.iris")

    await trio.to_thread.run_sync(exchange)
    url = free_gateway_url()
    status = terminal.directory / "ours.json"
    theirs = (
        "--credential",
        "acme-gate.iris",
        "--site",
        "eu",
        "--listen",
        url,
        "--export",
        ">",
        "--export-topic",
        "orders.>",
    )
    ours = ("--credential", "ours-gate.iris", "--site", "eu", "--peer", f"acme/{url}", "--status", str(status))
    with terminal.started("gateway", *theirs), terminal.started("gateway", *ours):
        await wait_for_sites(status, "acme/eu")
        async with (
            open_parts(credential="store.iris", site="eu", lan=False) as (store, parts),
            store.join("store", echo("store")),
            iris.open_node(credential="shop.iris", site="eu", lan=False) as shop,
        ):
            await shop.wait_for("acme/store", timeout=60)
            assert await shop.request("acme/store", b"over there", timeout=60) == b"over there"
            assert [member.site for member in shop.members("acme/store")] == ["acme/eu"]
            async with shop.open_tunnel("acme/store", timeout=60) as tunnel:
                await tunnel.send(b"x" * 100_000)
                await tunnel.send_eof()
                assert [len(payload) async for payload in tunnel] == [100_000]
            assert store.id in shop.statistics().links
            async with shop.subscribe("acme/orders.>") as events:
                with trio.fail_after(60):
                    assert parts.sites is not None
                    while not parts.sites.directory.subscribers():  # noqa: ASYNC110 -- of another process
                        await trio.sleep(0.05)
                await store.publish("orders.new", b"first")
                with trio.fail_after(60):
                    event = await anext(aiter(events))
                assert (event.topic, event.payload, event.sender.cluster) == ("acme/orders.new", b"first", "acme/store")
            # A credential that was refreshed is taken into use without a restart.
            await trio.to_thread.run_sync(keys, "distrust", "ours.key", "acme")
            await trio.to_thread.run_sync(keys, "refresh", "ours.key", "shop.iris", "ours-gate.iris")
            await wait_for_sites(status)
            with trio.fail_after(60):
                while store.id in shop.statistics().links:  # noqa: ASYNC110 -- the file is looked at once a second
                    await trio.sleep(0.1)
            with pytest.raises(NoSuchCluster, match="no realm is trusted here by the name of 'acme'"):
                await shop.request("acme/store", b"")
