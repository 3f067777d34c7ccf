"""The runbooks: each command names what the files beside it define, and a credential gets where the node reads it.

Programs that need a cluster or a running system are stood in for by one that writes down how it was called.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.deployments import DEPLOY, documents, manifests, unit

RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
"""


class Desk:
    """A folder of programs that write down how they were called, and a copy of ``deploy/``."""

    def __init__(self, folder: Path, *programs: str) -> None:
        self.calls = folder / "calls"
        self.deploy = folder / "deploy"
        shutil.copytree(DEPLOY, self.deploy)
        for name in programs:
            self.stand_in(name, RECORDER)

    def stand_in(self, name: str, script: str) -> None:
        """Put a program into the place of another one."""
        program = self.calls.parent / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(script)
        program.chmod(0o755)

    def run(self, where: str, *arguments: str) -> list[str]:
        """Return the calls that a runbook makes."""
        self.calls.write_text("")
        subprocess.run(
            [self.deploy / where / "runbook.sh", *arguments],
            env={"PATH": f"{self.calls.parent}/bin:{os.environ['PATH']}", "CALLS": str(self.calls)},
            check=True, timeout=60,
        )  # fmt: skip
        return self.calls.read_text().splitlines()


@pytest.fixture
def credential(tmp_path: Path) -> Path:
    file = tmp_path / "new"
    file.write_text("a new credential")
    return file


def test_kubernetes_restarts_and_examines_what_the_manifests_define(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "kubectl")
    assert desk.run("kubernetes", "restart") == ["kubectl rollout restart statefulset/prices"]
    (asked,) = desk.run("kubernetes", "doctor")
    assert asked == "kubectl exec prices-0 -- /bin/sh /usr/local/bin/iris-entrypoint iris doctor"
    members = manifests()["StatefulSet", "prices"]["spec"]["template"]["spec"]["containers"]
    entrypoint = (DEPLOY / "container" / "Containerfile").read_text()
    assert members[0]["name"] == "prices"
    assert "/usr/local/bin/iris-entrypoint" in entrypoint


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing: apt install kubernetes-client")
def test_kubernetes_gets_the_secret_that_its_members_mount(tmp_path: Path, credential: Path) -> None:
    desk = Desk(tmp_path)
    desk.stand_in("kubectl", f'#!/bin/sh\n[ "$1" = create ] && exec {shutil.which("kubectl")} "$@"\ncat >> "$CALLS"\n')
    (secret,) = yaml.safe_load_all("\n".join(desk.run("kubernetes", "renew", str(credential))))
    pod = manifests()["StatefulSet", "prices"]["spec"]["template"]["spec"]
    (mounted,) = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
    variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert (secret["kind"], secret["metadata"]["name"]) == ("Secret", mounted)
    (name,) = secret["data"]
    assert Path(str(variables["IRIS_CREDENTIAL"])).name == name
    assert base64.b64decode(secret["data"][name]) == credential.read_bytes()


def test_compose_restarts_and_examines_a_service_of_the_file(tmp_path: Path, credential: Path) -> None:
    desk = Desk(tmp_path, "podman")
    (compose,) = documents(DEPLOY / "compose" / "compose.yaml")
    assert "prices" in compose["services"]
    assert desk.run("compose", "restart") == ["podman compose up --detach --build prices"]
    (asked,) = desk.run("compose", "doctor")
    assert asked == "podman compose exec prices /bin/sh /usr/local/bin/iris-entrypoint iris doctor"
    secret = desk.deploy / "compose" / compose["secrets"]["prices"]["file"]
    secret.parent.mkdir()
    secret.write_text("an old one")
    secret.chmod(0o444)
    assert desk.run("compose", "renew", str(credential)) == ["podman compose restart prices"]
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("a new credential", 0o444)
    assert list(secret.parent.iterdir()) == [secret]


def test_systemd_gets_the_credential_that_its_unit_loads(tmp_path: Path, credential: Path) -> None:
    desk = Desk(tmp_path, "systemctl", "install", "iris")
    assert desk.run("systemd", "restart") == ["systemctl restart iris@prices"]
    assert desk.run("systemd", "renew", str(credential)) == [
        f"install -m 600 {credential} /etc/iris/prices.json",
        "systemctl restart iris@prices",
    ]
    assert desk.run("systemd", "doctor") == ["iris doctor --unit iris@prices"]
    assert unit(DEPLOY / "systemd" / "iris@.service")["LoadCredential"] == ["credential:/etc/iris/%i.json"]


@pytest.mark.parametrize("where", ["compose", "kubernetes", "systemd"])
def test_a_runbook_without_a_verb_says_which_there_are(where: str) -> None:
    done = subprocess.run([DEPLOY / where / "runbook.sh"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: runbook.sh doctor | restart | renew CREDENTIAL\n"
