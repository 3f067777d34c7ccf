"""The pages on deploying: their ports are those of the files, and the files leave room for their figures."""

from __future__ import annotations

import re

from tests.support.deployments import DEPLOY, ROOT, manifests

PAGES = (ROOT / "docs" / "howto" / "operate" / "deploy.md", ROOT / "docs" / "reference" / "ports.md")
PAGE = "".join(page.read_text() for page in PAGES)
WORKLOADS = [one for (kind, _), one in manifests().items() if kind in ("StatefulSet", "Deployment")]
CONTAINERS = [one for work in WORKLOADS for one in work["spec"]["template"]["spec"]["containers"]]


def test_its_ports_are_those_of_the_files() -> None:
    named = {int(port) for port in re.findall(r"^\| (\d+)/tcp (?!on 127)", PAGE, re.MULTILINE)}
    assert named == {port["containerPort"] for one in CONTAINERS for port in one["ports"]}
    exposed = re.search(r"^EXPOSE (.+)$", (DEPLOY / "container" / "Containerfile").read_text(), re.MULTILINE)
    assert exposed is not None
    assert named == {int(port) for port in exposed[1].split()}


def test_the_folders_that_it_names_are_those_that_there_are() -> None:
    assert set(re.findall(r"^\| `deploy/(\w+)/`", PAGE, re.MULTILINE)) == {path.name for path in DEPLOY.iterdir()}


def test_containers_ask_for_more_memory_than_was_measured_and_have_room_beside() -> None:
    measured = {"bridge": 183, "prices": 46, "gateway": 46, "web": 76}
    for one in CONTAINERS:
        assert f"{measured[one['name']]} MiB" in PAGE
        requested = int(one["resources"]["requests"]["memory"].removesuffix("Mi"))
        limit = one["resources"]["limits"]["memory"]
        assert measured[one["name"]] * 1.5 <= requested
        assert {"512Mi": 512, "1Gi": 1024}[limit] >= 3 * requested
