"""The Compose file: valid, consistent, and a shop of its services runs with what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployments import DEPLOY, Place, documents, end, missing, open_place
from tests.support.ports import free_port

FILE = DEPLOY / "compose" / "compose.yaml"
(COMPOSE,) = documents(FILE)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_the_file_is_valid_by_the_specification_of_compose() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_key_that_compose_does_not_know_would_be_found(tmp_path: Path) -> None:
    copy = tmp_path / "compose.yaml"
    copy.write_text(FILE.read_text().replace("stop_grace_period:", "stop_patience:"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(copy)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["user"] == "10001:10001"
    assert any(mount == "/run/iris:mode=1777" for mount in service["tmpfs"])


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_seeds_and_volumes_lead_somewhere(name: str) -> None:
    service = SERVICES[name]
    assert service["secrets"] == [name]
    assert service["environment"]["IRIS_CREDENTIAL"] == f"/run/secrets/{name}"
    assert COMPOSE["secrets"][name] == {"file": f"./secrets/{name}"}
    for seed in service["environment"]["IRIS_SEEDS"].split():
        host = re.fullmatch(r"tcp://([a-z]+):7000", seed)
        assert host is not None
        listens = [*SERVICES[host[1]]["command"], *SERVICES[host[1]]["environment"].values()]
        assert any("tcp://0.0.0.0:7000" in one for one in listens)
    for volume in service.get("volumes", ()):
        assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_what_is_built_is_there() -> None:
    for service in SERVICES.values():
        context = (FILE.parent / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file()


def test_a_container_has_more_time_to_end_than_its_work() -> None:
    command = SERVICES["prices"]["command"]
    assert (
        int(SERVICES["prices"]["stop_grace_period"].rstrip("s"))
        >= int(command[command.index("--drain-timeout") + 1]) + 5
    )


class Repository:
    """A repository of git with the files of Compose in it, and a home beside it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.project = folder / "project"
        self.compose = self.project / "compose"
        self.home.mkdir()
        shutil.copytree(FILE.parent, self.compose, ignore=shutil.ignore_patterns("secrets"))
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        kept = {"PATH": os.environ["PATH"], "HOME": str(self.home), "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", "-C", str(self.project), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=kept).stdout

    def make_secrets(self, **variables: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(self.home), **variables}
        command = ["sh", str(self.compose / "make-secrets.sh")]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.skipif(bool(missing("git")), reason=missing("git"))
def test_git_takes_neither_the_key_of_the_realm_nor_a_credential(tmp_path: Path) -> None:
    place = Repository(tmp_path)
    done = place.make_secrets()
    assert done.returncode == 0, done.stderr
    realm = place.home / ".config" / "iris" / "shop.realm"
    assert realm.stat().st_mode & 0o777 == 0o600
    secrets = place.compose / "secrets"
    assert secrets.stat().st_mode & 0o777 == 0o700
    made = {file.name: file.stat().st_mode & 0o777 for file in secrets.iterdir() if file.name != ".gitignore"}
    assert made == dict.fromkeys(SERVICES, 0o444)
    place.git("add", "-A")
    assert place.git("ls-files").split() == ["compose/compose.yaml", "compose/make-secrets.sh", "compose/runbook.sh"]
    before = {name: (secrets / name).read_bytes() for name in SERVICES}
    (secrets / "report").unlink()
    assert place.make_secrets().returncode == 0
    assert {name for name in SERVICES if (secrets / name).read_bytes() != before[name]} == {"report"}


@pytest.mark.skipif(bool(missing("git")), reason=missing("git"))
def test_a_key_of_a_realm_in_a_repository_is_refused_unless_git_passes_it_over(tmp_path: Path) -> None:
    place = Repository(tmp_path)
    inside = place.project / "realm.key"
    done = place.make_secrets(IRIS_REALM=str(inside))
    assert done.returncode == 1
    assert f"{inside} is in a repository of git" in done.stderr
    assert not inside.exists()
    (place.project / ".gitignore").write_text("realm.key\n")
    assert place.make_secrets(IRIS_REALM=str(inside)).returncode == 0
    place.git("add", "-A")
    assert "realm.key" not in place.git("ls-files").split()


def test_the_shop_runs_and_what_it_publishes_is_on_the_bridges_disk(tmp_path: Path) -> None:
    with open_place() as place:
        ports = {name: free_port() for name in ("prices", "orders", "bridge")}
        services = {name: start_service(place, tmp_path, name, ports) for name in ("prices", "orders", "bridge")}
        shoppers = place.credential("shoppers")
        asking = ("--credential", str(shoppers), "--seeds", f"tcp://127.0.0.1:{ports['orders']}")
        for _ in range(3):
            done = place.terminal.run(
                "request", "orders", "tea", "--wait", "20", "--listen", "tcp://127.0.0.1:0", *asking
            )
            assert (done.returncode, done.stdout) == (0, b"295\n"), done.stderr
        done = place.terminal.run("bridge", "tail", "--listen", "tcp://127.0.0.1:0", *asking)
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done.stderr
        for process in services.values():
            assert end(process, 40) == 0


def start_service(place: Place, tmp_path: Path, name: str, ports: dict[str, int]) -> subprocess.Popen[str]:
    """Start what a container would: names of services are loopback with the port of each, 9464 is a free one."""
    service, home = SERVICES[name], tmp_path / name
    home.mkdir(mode=0o700)

    def here(text: str) -> str:
        text = re.sub(r"tcp://(\w+):7000", lambda match: f"tcp://127.0.0.1:{ports[match[1]]}", text)
        text = text.replace("tcp://0.0.0.0:7000", f"tcp://127.0.0.1:{ports[name]}")
        return text.replace("0.0.0.0:9464", f"127.0.0.1:{free_port()}").replace("/var/lib/iris", str(home))

    service["command"] = [re.sub(r"^python3$", sys.executable, one) for one in service["command"]]
    environment = {variable: here(value) for variable, value in service["environment"].items()}
    run = place.terminal.directory.parent / f"run-{name}"
    environment |= {"IRIS_CREDENTIAL": str(place.credential(name)), "IRIS_HOME": str(home / "home")}
    entry = ["/bin/sh", str(DEPLOY / "container" / "entrypoint.sh")]
    return place.start([*entry, *map(here, service["command"])], {**environment, "XDG_RUNTIME_DIR": str(run)})
