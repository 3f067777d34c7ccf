"""Name servers that do not answer: a node opens and ends without them, and what else the program does goes on."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.node.open import open_parts
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm
from iris.security.identity import Credential

pytestmark = pytest.mark.long

OVER = threading.Event()
"""Ends the silence."""

SILENT = "tcp://silent.example:7000"


@pytest.fixture
def credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Credential]:
    """A credential, on a machine whose name server says nothing of ``silent.example``."""
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    real = socket.getaddrinfo
    OVER.clear()

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if "silent" in str(host) and not options.get("flags", 0) & socket.AI_NUMERICHOST:
            OVER.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    realm = create_realm(entropy=os.urandom)
    yield issue_cluster(realm, "shop", entropy=os.urandom, wall_now=iris.Environment().wall_clock())[1]
    OVER.set()


@pytest.mark.parametrize(
    "options",
    [
        {"seeds": [SILENT], "listen": ["tcp://127.0.0.1:0"]},
        {"seeds": [SILENT]},
        {"seeds": [f"tcp://silent{number}.example:7000" for number in range(20)]},
        {"seeds": [SILENT], "client": True},
        {"seeds": [SILENT.replace("tcp", "ws") + "/iris"], "dial_only": True},
    ],
    ids=["listens", "follows", "many", "client", "dials only"],
)
async def test_a_node_opens_and_ends_while_the_names_of_its_seeds_are_not_answered_for(
    credential: Credential, options: dict[str, Any]
) -> None:
    with trio.fail_after(25):
        async with iris.open_node(credential=credential, lan=False, **options) as node:
            assert not node.statistics().links
            ends = trio.current_time()
    assert trio.current_time() - ends < 5


@pytest.mark.parametrize("first", [True, False])
async def test_one_seed_that_has_no_name_is_enough(credential: Credential, first: bool) -> None:
    async with open_parts(credential=credential, lan=False, listen=["tcp://127.0.0.1:0"]) as (_, other_parts):
        good = next(url for url in other_parts.mesh.listening if url.startswith("tcp://"))
        seeds = [good, SILENT] if first else [SILENT, good]
        with trio.fail_after(20):
            async with open_parts(credential=credential, lan=False, seeds=seeds) as (node, node_parts):
                assert len(node.statistics().links) == 1
                async with node.join("shop", iris.Service("shop")):
                    assert any(url.startswith("tcp://127.0.0.1:") for url in node_parts.mesh.listening)


async def test_a_name_to_listen_at_that_is_not_answered_for_holds_up_nobody_else(credential: Credential) -> None:
    with trio.fail_after(30):
        async with (
            iris.open_node(credential=credential, lan=False, listen=["tcp://127.0.0.1:0"]) as other,
            other.subscribe("news") as events,
            trio.open_nursery() as nursery,
        ):

            async def listen() -> None:
                with pytest.raises(iris.ConfigError, match="cannot listen"):
                    async with iris.open_node(credential=credential, lan=False, listen=["tcp://silent.example:0"]):
                        pass

            nursery.start_soon(listen)
            await trio.sleep(0.5)
            longest = 0.0
            for number in range(20):
                began = time.monotonic()
                await other.publish("news", number)
                assert (await anext(events)).payload == number
                await trio.sleep(0.05)
                longest = max(longest, time.monotonic() - began)
            assert longest < 5
            OVER.set()
