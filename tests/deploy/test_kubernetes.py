"""The manifests: valid for Kubernetes, consistent, and their containers' commands run and drain as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from signal import SIGTERM
from typing import Any
from urllib.request import urlopen

import kubernetes_validate
import pytest
import yaml

from tests.support.deployments import (
    DEPLOY,
    Place,
    by_name,
    documents,
    end,
    is_healthy,
    manifests,
    open_place,
)  # fmt: skip
from tests.support.ports import free_port

OBJECTS = manifests()
WORKLOADS = {name: one for (kind, name), one in OBJECTS.items() if kind in ("StatefulSet", "Deployment")}
SERVING = [name for name in WORKLOADS if name != "web"]
POLICIES = {name: one["spec"] for (kind, name), one in OBJECTS.items() if kind == "NetworkPolicy"}
_NO_KUBECTL = "" if shutil.which("kubectl") else "kubectl is missing: apt install kubernetes-client"
OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: shop
resources: [../base]
images: [{name: iris, newName: registry.example/iris, newTag: 1.0.0}]
replicas: [{name: prices, count: 5}]
"""
VERSIONS = ("1.28", "1.31", "1.34")


def container_of(name: str) -> dict[str, Any]:
    containers: list[dict[str, Any]] = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
    (one,) = containers
    return one


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key", OBJECTS, ids="/".join)
def test_each_object_is_valid_and_has_no_field_that_kubernetes_does_not_know(
    key: tuple[str, str], version: str
) -> None:
    kubernetes_validate.validate(OBJECTS[key], version, strict=True)


def test_a_field_that_does_not_exist_would_be_found() -> None:
    broken = documents(DEPLOY / "kubernetes" / "prices.yaml")[1]
    broken["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def kustomize(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects that ``kubectl apply --kustomize`` would send."""
    done = subprocess.run(["kubectl", "kustomize", folder], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return by_name([one for one in yaml.safe_load_all(done.stdout) if one is not None])


def test_every_manifest_is_applied() -> None:
    folder = DEPLOY / "kubernetes"
    (listed,) = documents(folder / "kustomization.yaml")
    assert {"kustomization.yaml", *listed["resources"]} == {path.name for path in folder.glob("*.yaml")}


@pytest.mark.skipif(bool(_NO_KUBECTL), reason=_NO_KUBECTL)
def test_what_kustomize_renders_is_what_is_checked_here() -> None:
    assert kustomize(DEPLOY / "kubernetes") == OBJECTS


@pytest.mark.skipif(bool(_NO_KUBECTL), reason=_NO_KUBECTL)
def test_an_overlay_has_a_registry_a_namespace_and_a_number_of_members_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "base")
    overlay = tmp_path / "site" / "kustomization.yaml"
    overlay.parent.mkdir()
    overlay.write_text(OVERLAY)
    objects = kustomize(overlay.parent)
    for key, one in objects.items():
        assert one["metadata"]["namespace"] == "shop", key
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    prices = objects["StatefulSet", "prices"]["spec"]
    assert prices["replicas"] == 5
    assert prices["template"]["spec"]["containers"][0]["image"] == "registry.example/iris:1.0.0"
    assert objects["RoleBinding", "iris-seeds"]["subjects"][0]["namespace"] == "shop"


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_container_has_more_rights_than_it_needs(name: str) -> None:
    pod, container = WORKLOADS[name]["spec"]["template"]["spec"], container_of(name)
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("name", WORKLOADS)
def test_secrets_and_volumes_fit_together(name: str) -> None:
    pod, container = WORKLOADS[name]["spec"]["template"]["spec"], container_of(name)
    environment = {one["name"]: one.get("value") for one in container["env"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    claims = {one["metadata"]["name"] for one in WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())}
    assert set(mounts) == set(volumes) | claims
    assert environment["IRIS_CREDENTIAL"] == f"{mounts['credential']}/credential"
    assert volumes["credential"]["secret"] == {"secretName": name, "defaultMode": 0o440}


@pytest.mark.parametrize("name", SERVING)
def test_ports_and_probes_fit_together(name: str) -> None:
    container = container_of(name)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    for option, port in (("metrics", "metrics"), ("listen", "sites" if name == "gateway" else "iris")):
        (value,) = [one for one in container["args"] if one.startswith(f"--{option}=")]
        assert f":{ports[port]}" in value


@pytest.mark.parametrize("name", WORKLOADS)
def test_seeds_are_headless_services_whose_pods_listen_there(name: str) -> None:
    environment = {one["name"]: one.get("value") for one in container_of(name)["env"]}
    for seed in environment["IRIS_SEEDS"].split():
        host, port = re.fullmatch(r"tcp://([a-z]+):(\d+)", seed).groups()  # type: ignore[union-attr]
        service = OBJECTS["Service", host]["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert [one["port"] for one in service["ports"]] == [int(port)]
        labels = WORKLOADS[host]["spec"]["template"]["metadata"]["labels"]
        assert service["selector"].items() <= labels.items()


def test_the_account_for_seeds_may_list_endpoint_slices_and_nothing_else() -> None:
    account, binding = OBJECTS["ServiceAccount", "iris-seeds"], OBJECTS["RoleBinding", "iris-seeds"]
    assert OBJECTS["Role", "iris-seeds"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    ]
    assert not account["automountServiceAccountToken"], "a pod says by itself that it asks"
    assert binding["roleRef"]["name"] == "iris-seeds"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "iris-seeds"}]
    ports = [one for one in OBJECTS["Service", "prices"]["spec"]["ports"] if one["name"] == "iris"]
    assert len(ports) == 1, "it is what kubernetes:///prices takes"


def test_the_web_application_is_probed_where_it_listens() -> None:
    container = container_of("web")
    (port,) = [one["containerPort"] for one in container["ports"]]
    assert f"--port={port}" in container["args"]
    assert OBJECTS["Service", "web"]["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert probes == {
        "startup": {"path": "/livez", "port": "http"},
        "liveness": {"path": "/livez", "port": "http"},
        "readiness": {"path": "/readyz", "port": "http"},
    }


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Say whether a label selector matches, as Kubernetes has it: NotIn matches what has no such label, too."""
    wanted = selector.get("matchLabels", {})
    unwanted = selector.get("matchExpressions", ())
    assert all(one["operator"] == "NotIn" for one in unwanted)
    return wanted.items() <= labels.items() and all(labels.get(one["key"]) not in one["values"] for one in unwanted)


def entered(source: str, target: str) -> set[int]:
    """Return the ports at which the policies let the pods of one workload connect to those of another."""
    labels = {name: WORKLOADS[name]["spec"]["template"]["metadata"]["labels"] for name in (source, target)}

    def let(way: str, at: str, other: str, side: str) -> set[int] | None:
        """Return the ports of what applies to a pod; None if nothing does, and all is let through."""
        applied = [
            one for one in POLICIES.values() if way in one["policyTypes"] and selects(one["podSelector"], labels[at])
        ]
        rules = [rule for one in applied for rule in one.get(way.lower(), ())]
        fitting = [
            rule for rule in rules
            if side not in rule or any(selects(peer["podSelector"], labels[other]) for peer in rule[side])
        ]  # fmt: skip
        ports = {port["port"] for rule in fitting for port in rule["ports"] if port["protocol"] == "TCP"}
        return ports if applied else None

    into, out = let("Ingress", target, source, "from"), let("Egress", source, target, "to")
    assert into is not None
    return into if out is None else into & out


def test_a_caller_reaches_those_that_serve_and_nobody_of_the_realm_reaches_it() -> None:
    for name in SERVING:
        assert entered("web", name) == {7000}
        assert entered(name, "web") == {8080}
        assert {7000, 9464} <= entered("prices", name)


def test_a_pod_has_more_time_to_end_than_its_work() -> None:
    (drain,) = [one for one in container_of("prices")["args"] if one.startswith("--drain-timeout=")]
    grace = WORKLOADS["prices"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= float(drain.partition("=")[2]) + 5


def test_the_bridge_has_as_many_shards_as_pods() -> None:
    assert f"--of={WORKLOADS['bridge']['spec']['replicas']}" in container_of("bridge")["args"]


def test_the_containers_run_as_the_manifests_have_them_become_ready_and_drain(tmp_path: Path) -> None:
    with open_place() as place:
        first = run_container(place, tmp_path, "prices", {})
        seed = {"IRIS_SEEDS": f"tcp://127.0.0.1:{first.ports['7000']}"}
        others = [
            run_container(place, tmp_path, name, seed, *options)
            for name, options in (("bridge", ("--serve", "bridge.*")), ("gateway", ("--gateway",)))
        ]
        asked = place.credential("askers")
        done = place.terminal.run(
            *("request", "prices", "tea", "--credential", str(asked)),
            *("--seeds", seed["IRIS_SEEDS"], "--listen", "tcp://127.0.0.1:0"),
        )
        assert (done.returncode, done.stdout) == (0, b"295\n"), done.stderr
        for one in (first, *others):
            assert is_healthy(one.ports["9464"])
        web = run_container(place, tmp_path, "web", seed)
        assert is_healthy(web.ports["8080"], "/livez")
        assert is_healthy(web.ports["8080"], "/readyz")
        with urlopen(f"http://127.0.0.1:{web.ports['8080']}/prices/tea", timeout=10) as answer:
            assert answer.read() == b"295"
        assert end(web.process, web.grace) in (0, -SIGTERM)  # uvicorn ends by the signal, once it has finished
        for one in (first, *others):
            assert end(one.process, one.grace) == 0


class Running:
    """A container's process."""

    def __init__(self, process: subprocess.Popen[str], ports: dict[str, int], grace: float) -> None:
        self.process = process
        self.ports = ports
        self.grace = grace


def run_container(place: Place, tmp_path: Path, name: str, environment: dict[str, str], *options: str) -> Running:
    """Run what a pod would, by the image's own entry point: on loopback, at free ports."""
    spec = WORKLOADS[name]["spec"]["template"]["spec"]
    container = container_of(name)
    ports = {str(one["containerPort"]): free_port() for one in container["ports"]}
    values = {"POD_IP": "127.0.0.1", "SHARD": "0"}
    arguments = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], one) for one in container["args"]]
    arguments = [re.sub(r"(127\.0\.0\.1):(\d+)", lambda m: f"{m[1]}:{ports[m[2]]}", one) for one in arguments]
    arguments = [re.sub(r"=8080$", f"={ports.get('8080')}", one) for one in arguments]
    arguments = [re.sub(r"^--host=0\.0\.0\.0$", "--host=127.0.0.1", one) for one in arguments]
    home = tmp_path / name
    home.mkdir()
    home.chmod(0o777)  # as a volume with fsGroup is
    arguments = [one.replace("/var/lib/iris", str(home)) for one in arguments]
    variables = {
        **{one["name"]: one["value"] for one in container["env"] if "value" in one and one["name"] != "IRIS_SEEDS"},
        "IRIS_CREDENTIAL": str(place.credential(name, *options)),
        "IRIS_HOME": str(home / "home"),
        "XDG_RUNTIME_DIR": str(place.terminal.directory.parent / f"run-{name}"),
        **environment,
    }
    entry = ["/bin/sh", str(DEPLOY / "container" / "entrypoint.sh")]
    process = place.start([*entry, *arguments], variables, DEPLOY / ("web" if name == "web" else "shop"))
    return Running(process, ports, spec["terminationGracePeriodSeconds"])
