"""Nodes that find each other by a source of seeds alone: no registry, no local network, no address book."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio

import iris
from iris.cluster.discovery import resolve_seed
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm
from iris.security.identity import Credential
from tests.support.ports import free_port

LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module")
def credential() -> Credential:
    return issue_cluster(create_realm(os.urandom), "prices", entropy=os.urandom, wall_now=time.time())[1]  # noqa: TID251


def alone(**changes: object) -> iris.Environment:
    """Return an environment in which seeds are the only way to others."""
    return iris.Environment(directory=None, lan=None, variables={}, **changes)  # type: ignore[arg-type]


async def echo(request: iris.Request) -> object:
    return request.payload


def service() -> iris.Service:
    made = iris.Service("prices")
    made.request("echo")(echo)
    return made


@pytest.fixture
async def member(credential: Credential) -> AsyncIterator[iris.Node]:
    environment = alone()
    async with (
        iris.open_node(credential=credential, listen=[LOOPBACK], environment=environment) as node,
        node.join("prices", service()),
    ):
        yield node


def place(node: iris.Node) -> str:
    return node.addresses[0].removeprefix("tcp://")


async def never(seed: str) -> tuple[str, ...]:
    if seed.startswith("file://"):
        return await resolve_seed(seed)
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize("client", [True, False])
async def test_a_source_that_says_nothing_holds_up_no_node_that_another_one_leads_to(
    member: iris.Node, credential: Credential, tmp_path: Path, client: bool
) -> None:
    file = tmp_path / "seeds"
    file.write_text(f"{place(member)}\n")
    seeds = ["kubernetes://shop/prices", "tcp://nobody.example:7000", f"file://{file}"]
    with trio.fail_after(8):  # a member gives up who says nothing after 2 s; a client does not wait at all
        async with iris.open_node(
            credential=credential, seeds=seeds, client=client, environment=alone(resolve=never)
        ) as node:
            assert await node.request("prices", 1, operation="echo", timeout=5) == 1
            known = node.statistics().seeds
            assert {url: one.answered for url, one in known.items()} == dict(zip(seeds, (0, 0, 1), strict=True))


async def test_members_that_are_written_into_the_file_later_are_found(
    member: iris.Node, credential: Credential, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "seeds"
    seed = f"file://{file}"
    async with iris.open_node(credential=credential, listen=[LOOPBACK], seeds=[seed], environment=alone()) as node:
        assert not node.nodes()
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
            f"{seed}: the file cannot be read: No such file or directory; trying again"
        ]
        (tmp_path / "next").write_text(f"127.0.0.1:{free_port()}\n{place(member)}\n")
        (tmp_path / "next").rename(file)
        await node.wait_for("prices", timeout=20)
        (tmp_path / "next").write_text("10.0.0.1:\n")
        (tmp_path / "next").rename(file)
        with trio.fail_after(20):
            while (known := node.statistics().seeds[seed]).error is None:  # noqa: ASYNC110 -- it is looked at now and then
                await trio.sleep(0.1)
        assert known.addresses == 2, "those of before"
        assert "line 1 is no HOST:PORT" in str(known.error)


async def test_a_malformed_source_of_a_credential_costs_that_seed_alone(
    member: iris.Node, credential: Credential, caplog: pytest.LogCaptureFixture
) -> None:
    import msgspec

    odd = msgspec.structs.replace(credential, seeds=("kubernetes://", member.addresses[0]))
    async with iris.open_node(credential=odd, environment=alone()) as node:
        assert await node.request("prices", 1, operation="echo", timeout=5) == 1
    assert any("'kubernetes://' names no Service" in record.getMessage() for record in caplog.records)


async def test_a_form_that_is_none_is_refused_before_anything_opens(credential: Credential) -> None:
    for options in ({"seeds": ["kubernetes://prices"]}, {}):
        environment = iris.Environment(directory=None, lan=None, variables={"IRIS_SEEDS": "dns+srv://a..b"})
        with pytest.raises(iris.ConfigError, match=r"use (kubernetes|dns\+srv)://"):
            async with iris.open_node(credential=credential, environment=environment, **options):  # type: ignore[arg-type]
                pass


async def test_who_begins_to_serve_listens_where_the_members_of_a_source_reach_it(
    credential: Credential, tmp_path: Path
) -> None:
    file = tmp_path / "seeds"
    file.write_text(f"127.0.0.1:{free_port()}\n")  # nobody is there, so it is linked to nobody
    async with iris.open_node(credential=credential, seeds=[f"file://{file}"], environment=alone()) as node:
        assert not node.addresses
        async with node.join("prices", service()):
            assert node.addresses[0].startswith("tcp://127.0.0.1:")


async def test_srv_records_lead_to_members(member: iris.Node, credential: Credential) -> None:
    pytest.importorskip("dns", reason="the extra dns")
    from tests.support.name_server import open_name_server

    seed = "dns+srv://_iris._tcp.example.org"
    with open_name_server() as server:
        port = place(member).rpartition(":")[2]
        server.records["_iris._tcp.example.org", "SRV"] = [f"0 0 {port} localhost."]
        ask = partial(resolve_seed, make_resolver=server.resolver)
        async with iris.open_node(
            credential=credential, seeds=[seed], client=True, environment=alone(resolve=ask)
        ) as node:
            assert await node.request("prices", 1, operation="echo", timeout=20) == 1


async def test_endpoints_of_kubernetes_lead_to_members_also_after_its_api_was_away(
    member: iris.Node, credential: Credential, tmp_path: Path
) -> None:
    pytest.importorskip("kubernetes_validate")
    from tests.support.kubernetes_api import endpoint, endpoint_slice, open_api

    seed = "kubernetes:///prices"
    with open_api(tmp_path) as api:
        api.answer = (503, b"")
        ask = partial(resolve_seed, pod=api.pod)
        async with iris.open_node(
            credential=credential, listen=[LOOPBACK], seeds=[seed], environment=alone(resolve=ask)
        ) as node:
            assert node.statistics().seeds[seed].error == f"{seed}: Kubernetes answers with the status 503"
            port = int(place(member).rpartition(":")[2])
            api.slices = [endpoint_slice(endpoint("127.0.0.1"), ports=[("iris", port)])]
            api.answer = None
            await node.wait_for("prices", timeout=30)


async def test_a_node_that_nobody_answers_says_why_to_who_asks(credential: Credential, tmp_path: Path) -> None:
    async with iris.open_node(
        credential=credential, seeds=[f"file://{tmp_path}/seeds"], client=True, environment=alone()
    ) as node:
        with pytest.raises(iris.DeliveryError, match="the file cannot be read"):
            await node.request("prices", 1, operation="echo", timeout=1)
