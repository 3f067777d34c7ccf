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

from tests.support.deployments import DEPLOY, Place, documents, end, open_place
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
    assert any(mount.startswith("/run/iris:uid=10001,gid=10001,mode=0700") for mount in service["tmpfs"])


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


@pytest.mark.skipif(os.geteuid() != 0, reason="to give files to the user of the containers needs root")
def test_the_script_makes_a_credential_for_each_service_that_only_the_containers_user_reads(tmp_path: Path) -> None:
    shutil.copy(FILE.parent / "make-secrets.sh", tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", tmp_path / "make-secrets.sh"], check=True, capture_output=True, env={**os.environ, "PATH": path}
    )
    made = {file.name: file.stat() for file in (tmp_path / "secrets").iterdir()}
    assert made.keys() == SERVICES.keys()
    assert {(status.st_uid, status.st_mode & 0o777) for status in made.values()} == {(10001, 0o400)}


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
