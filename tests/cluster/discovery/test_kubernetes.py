"""Endpoints of a Service, asked of a server that speaks HTTPS as the API server of Kubernetes does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

pytest.importorskip("kubernetes_validate")

from msgspec import structs

from iris.cluster.discovery import kubernetes
from iris.cluster.discovery.kubernetes import MAX_ANSWER, Pod
from iris.cluster.discovery.seeds import resolve_seed
from iris.kernel.errors import NotSent
from tests.support.kubernetes_api import Api, endpoint, endpoint_slice, make_authority, open_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as api:
        api.slices = [endpoint_slice(endpoint("10.1.0.1"), endpoint("10.1.0.2"))]
        yield api


async def ask(api: Api, seed: str = "kubernetes://shop/prices", pod: Pod | None = None) -> tuple[str, ...]:
    return await resolve_seed(seed, pod=pod or api.pod)


async def test_a_service_stands_for_its_pods(api: Api) -> None:
    assert await ask(api) == ("tcp://10.1.0.1:7000", "tcp://10.1.0.2:7000")
    api.slices.append(endpoint_slice(endpoint("10.1.0.3"), name="prices-b"))
    api.slices.append(endpoint_slice(endpoint("2001:db8::1"), kind="IPv6", name="prices-6"))
    api.slices.append(endpoint_slice(endpoint("10.1.0.9"), service="stock", name="stock-a"))
    assert (await ask(api))[2:] == ("tcp://10.1.0.3:7000", "tcp://[2001:db8::1]:7000"), "asked anew each time"
    assert all("resourceVersion=0" in path for path in api.asked), "it costs etcd nothing"


async def test_the_namespace_is_that_of_the_pod_unless_it_is_given(api: Api) -> None:
    assert await ask(api, "kubernetes:///prices") == await ask(api)
    with pytest.raises(NotSent, match="may not list the endpointslices of namespace other"):
        await ask(api, "kubernetes://other/prices")


async def test_pods_that_start_are_among_them_and_pods_that_end_are_not(api: Api) -> None:
    api.slices = [
        endpoint_slice(
            endpoint("10.1.0.1", ready=False),
            endpoint("10.1.0.2", ready=False, terminating=True),
            endpoint("10.1.0.3", ready=None, terminating=None),
        )
    ]
    assert await ask(api) == ("tcp://10.1.0.1:7000", "tcp://10.1.0.3:7000")


async def test_which_port_it_is(api: Api) -> None:
    assert (await ask(api, "kubernetes://shop/prices:metrics"))[0] == "tcp://10.1.0.1:9464"
    assert (await ask(api, "kubernetes://shop/prices:7443"))[0] == "tcp://10.1.0.1:7443"
    api.slices = [endpoint_slice(endpoint("10.1.0.1"), ports=[("main", 7001)])]
    assert await ask(api) == ("tcp://10.1.0.1:7001",), "the only one"
    api.slices = [endpoint_slice(endpoint("10.1.0.1"), ports=[("main", 7001), ("other", 7002)])]
    with pytest.raises(NotSent, match=r"which port is it.* main, other: write :PORT behind its name"):
        await ask(api)
    api.slices = [endpoint_slice(endpoint("10.1.0.1"), ports=[])]
    with pytest.raises(NotSent, match="none with a name: write :PORT"):
        await ask(api)


async def test_a_token_that_was_replaced_is_taken_into_use(api: Api) -> None:
    await ask(api)
    api.token = "token-2"
    with pytest.raises(NotSent, match="does not accept the token"):
        await ask(api)
    api.rotate("token-3")
    assert await ask(api)


async def test_no_token_goes_to_a_server_of_another_ca(api: Api) -> None:
    stranger, _ = make_authority()
    (api.directory / "ca.crt").unlink()
    (api.directory / "ca.crt").write_bytes(stranger)
    with pytest.raises(NotSent, match=r"127.0.0.1 is not the API server of the pod's cluster: .*(signature|issuer)"):
        await ask(api)
    assert not api.asked


async def test_no_token_goes_to_a_server_with_another_name(api: Api) -> None:
    variables = {**api.variables, "KUBERNETES_SERVICE_HOST": "localhost"}
    with pytest.raises(NotSent, match="localhost is not the API server of the pod's cluster: Hostname mismatch"):
        await ask(api, pod=structs.replace(api.pod, variables=variables))
    assert not api.asked


@pytest.mark.parametrize("name", ["token", "ca.crt", "namespace"])
@pytest.mark.parametrize("damage", ["gone", "empty", "no text"])
async def test_without_what_the_service_account_has_nobody_is_asked(api: Api, name: str, damage: str) -> None:
    (api.directory / name).unlink()
    if damage != "gone":
        (api.directory / name).write_bytes(b"" if damage == "empty" else b"a\r\nX-Header: b\xff")
    with pytest.raises(NotSent, match=f"{name} (cannot be read|says nothing)"):
        await ask(api, "kubernetes:///prices")
    assert not api.asked


async def test_a_ca_that_is_none_and_a_token_of_two_lines_are_refused(api: Api) -> None:
    token = api.directory / "token"
    token.unlink()
    token.write_text("a\nb")
    with pytest.raises(NotSent, match="token says nothing that can be used"):
        await ask(api)
    token.write_text("token-1")
    (api.directory / "ca.crt").unlink()
    (api.directory / "ca.crt").write_text("none")
    with pytest.raises(NotSent, match=r"ca\.crt is no certificate"):
        await ask(api)
    assert not api.asked


async def test_outside_of_a_pod_it_says_so(api: Api) -> None:
    with pytest.raises(NotSent, match="this is no pod of Kubernetes"):
        await ask(api, pod=Pod(directory=api.directory, variables={}))


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, b"{}", "the status 500"),
        (302, b"", "the status 302"),
        (200, b"{", "is no list of endpointslices"),
        (200, b"[]", "is no list of endpointslices"),
        (200, b'{"items": [{"addressType": "IPv4", "endpoints": [{"addresses": "x"}]}]}', "is no list"),
        (200, b"[" * 100_000, "is no list of endpointslices"),
        (200, b'{"items": [{"addressType": "\xff"}]}', "is no list of endpointslices"),
        (
            200,
            json.dumps(
                {"items": [endpoint_slice(endpoint("10.1.0.1")) | {"ports": [{"name": "\x1b[2J\n" * 99, "port": -1}]}]}
            ).encode(),
            "which port is it",
        ),
        (9_999, b"", "cannot be asked"),
        (200, b'{"items": []}', "there is no pod behind the Service prices of namespace shop"),
        (200, b'{"items": null}', "there is no pod behind the Service"),
        (
            200,
            json.dumps({"items": [endpoint_slice(endpoint("10.1.0.1")) | {"addressType": "FQDN"}]}).encode(),
            "there is no pod",
        ),
        (
            200,
            json.dumps({"items": [endpoint_slice() | {"endpoints": [{"addresses": ["a@b"]}]}]}).encode(),
            "an address that is none",
        ),
        (200, b" " * (MAX_ANSWER + 1), f"more than {MAX_ANSWER} bytes"),
    ],
)
async def test_any_other_answer_is_a_failure_with_its_reason(api: Api, status: int, body: bytes, reason: str) -> None:
    api.answer = (status, body)
    with pytest.raises(NotSent, match=reason) as refused:
        await ask(api)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400


async def test_a_server_that_does_not_answer_is_not_waited_for(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "PATIENCE", 0.3)
    api.stalls = True
    with trio.fail_after(20), pytest.raises(NotSent, match=r"does not answer at 127.0.0.1 within 0.3 s"):
        await ask(api)


async def test_a_server_whose_answer_has_a_byte_now_and_then_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PATIENCE", 0.3)
    api.trickles = True
    with pytest.raises(NotSent, match=r"does not answer at 127.0.0.1 within 0.3 s"):
        await ask(api)


@pytest.mark.parametrize("host", ["10.0.0.1\n", "a b", "a" * 64, "..", "\x1b[2J"])
async def test_a_host_that_is_none_is_a_failure_of_that_seed(api: Api, host: str) -> None:
    variables = {**api.variables, "KUBERNETES_SERVICE_HOST": host}
    with pytest.raises(NotSent, match="Kubernetes cannot be asked at") as refused:
        await ask(api, pod=structs.replace(api.pod, variables=variables))
    assert str(refused.value).isprintable()


async def test_a_server_that_is_not_there_is_told(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    variables = {**api.variables, "KUBERNETES_SERVICE_PORT": port}
    with pytest.raises(NotSent, match=r"cannot be asked at 127\.0\.0\.1: .*refused"):
        await ask(api, pod=structs.replace(api.pod, variables=variables))
