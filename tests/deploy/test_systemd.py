"""The units: verified by systemd, and their command lines run with the credential where systemd puts it."""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from iris.security.authority import issuing
from iris.security.files.credential_file import encode_credential
from tests.support.deployments import DEPLOY, IRIS, Place, end, is_healthy, missing, open_place, unit
from tests.support.ports import free_port
from tests.support.systemd import Systemd, absent, open_systemd

UNITS = {path.stem.rstrip("@"): path for path in (DEPLOY / "systemd").glob("*.service")}
INSTANCE = "prices"
OPTIONS = {"iris": (), "iris-bridge": (), "iris-gateway": ("--gateway",)}


@pytest.mark.skipif(bool(missing("systemd-analyze")), reason=missing("systemd-analyze"))
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    copy = tmp_path / UNITS[name].name
    copy.write_text(UNITS[name].read_text().replace("/opt/iris/bin/iris", IRIS))  # which has to be there
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(bool(missing("systemd-analyze")), reason=missing("systemd-analyze"))
def test_systemd_would_find_a_setting_that_does_not_exist(tmp_path: Path) -> None:
    copy = tmp_path / "iris.service"
    text = UNITS["iris-bridge"].read_text().replace("/opt/iris/bin/iris", IRIS)
    copy.write_text(text.replace("LoadCredential=", "LoadCredentials="))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert "LoadCredentials" in done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_the_credential_comes_by_systemd_and_files_are_many(name: str) -> None:
    settings = unit(UNITS[name])
    assert settings["LoadCredential"][0].startswith("credential:/etc/iris/")
    assert "IRIS_CREDENTIAL=%d/credential" in settings["Environment"][0].split()
    assert int(settings["LimitNOFILE"][0]) >= 65_536
    drain = re.search(r"--drain-timeout (\d+)", settings["ExecStart"][0])
    assert drain is None or int(settings["TimeoutStopSec"][0]) >= int(drain[1]) + 5


def test_each_unit_has_a_port_for_metrics_and_a_user_of_its_own() -> None:
    ports = [unit(path)["Environment"][1] for path in UNITS.values()]
    assert sorted(ports) == [f"IRIS_METRICS=127.0.0.1:{port}" for port in (9464, 9465, 9466)]
    assert {unit(path)["User"][0] for path in UNITS.values()} == {"iris-%i", "iris-bridge", "iris-gateway"}


STOCK = """
import iris

service = iris.Service("stock")


@service.request
def left(item: str) -> int:
    return len(item)
"""


@contextmanager
def open_machine(top: Path) -> Generator[Systemd]:
    """A machine with the template, the programs of two members, and their credentials and settings."""
    with open_systemd(top) as machine:
        prices = (DEPLOY / "shop" / "shop.py").read_text().replace("prices = iris", "service = prices = iris")
        machine.write("/srv/iris/prices.py", prices)
        machine.write("/srv/iris/stock.py", STOCK)
        machine.write("/etc/systemd/system/iris@.service", UNITS["iris"].read_text())
        machine.write("/etc/systemd/system/iris@.service.d/log.conf", "[Service]\nStandardOutput=append:/var/log/%i\n")
        machine.write("/etc/iris/prices.env", "IRIS_ARGUMENTS=--listen tcp://127.0.0.1:7000\n")
        realm, now = issuing.create_realm(os.urandom), datetime.datetime.now(datetime.UTC).timestamp()
        for name in ("prices", "stock", "askers"):
            realm, credential = issuing.issue_cluster(realm, name, entropy=os.urandom, wall_now=now)
            machine.write(f"/etc/iris/{name}.json", encode_credential(credential).decode(), 0o600)
        assert machine.run("systemctl", "daemon-reload").returncode == 0
        yield machine


def findings(machine: Systemd, name: str) -> dict[str, dict[str, str]]:
    done = machine.run("iris", "doctor", "-o", "json", "--unit", name)
    assert done.returncode in (0, 1), done.stderr
    return {one["code"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.long
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_two_members_live_beside_each_other_by_systemd_and_doctor_looks_as_their_units_do(tmp_path: Path) -> None:
    with open_machine(tmp_path) as machine:
        settings = "IRIS_SEEDS=tcp://127.0.0.1:7000\nIRIS_ARGUMENTS=--listen tcp://127.0.0.1:7001\n"
        machine.write("/etc/iris/stock.env", settings)
        assert machine.run("systemctl", "start", "iris@prices").returncode == 0
        healthy = (
            "python3",
            "-c",
            "import sys, urllib.request as r; r.urlopen(f'http://127.0.0.1:{sys.argv[1]}/healthz')",
        )
        machine.wait(*healthy, "9464")

        found = findings(machine, "iris@prices")
        assert [one["code"] for one in found.values() if one["level"] == "problem"] == []
        assert {"metrics-running", "listen-running", "home-ok", "runtime-ok", "credential-ok"} <= found.keys()
        assert "Iris home /var/lib/iris-prices" in found["home-ok"]["cause"]

        found = findings(machine, "iris@stock")
        assert [one["code"] for one in found.values() if one["level"] == "problem"] == ["metrics-taken"]
        assert "a node of cluster prices serves its metrics at 127.0.0.1:9464" in found["metrics-taken"]["cause"]
        assert "IRIS_METRICS=127.0.0.1:9467" in found["metrics-taken"]["remedy"]
        assert found["listen-ok"]["cause"].startswith("tcp://127.0.0.1:7001")

        machine.write("/etc/iris/stock.env", f"{settings}IRIS_METRICS=127.0.0.1:9467\n")
        assert machine.run("systemctl", "start", "iris@stock").returncode == 0
        machine.wait(*healthy, "9467")
        asking = ("--credential", "/etc/iris/askers.json", "--seeds", "tcp://127.0.0.1:7000")
        for cluster, answer in (("prices", "295\n"), ("stock", "3\n")):
            done = machine.run("iris", "request", cluster, "tea", "--listen", "tcp://127.0.0.1:0", *asking)
            assert (done.returncode, done.stdout) == (0, answer), done.stderr
        users = machine.run(
            "systemctl", "show", "--property=UID", "--value", "iris@prices", "iris@stock"
        ).stdout.split()
        assert len(set(users)) == 2
        assert "0" not in users

        machine.write("/root/runbook.sh", (DEPLOY / "systemd" / "runbook.sh").read_text(), 0o755)
        assert machine.run("/root/runbook.sh", "doctor").returncode == 0
        process = ("systemctl", "show", "--property=MainPID", "--value", "iris@prices")
        before = machine.run(*process).stdout
        machine.run("cp", "/etc/iris/prices.json", "/root/new.json")
        assert machine.run("/root/runbook.sh", "renew", "/root/new.json").returncode == 0
        machine.wait(*healthy, "9464")
        assert machine.run(*process).stdout != before

        assert machine.run("systemctl", "stop", "iris@stock", "iris@prices").returncode == 0
        ended = machine.run("systemctl", "show", "--property=Result", "--value", "iris@prices", "iris@stock")
        assert ended.stdout.split() == ["success", "success"]


@pytest.mark.skipif(bool(absent()), reason=absent())
def test_doctor_looks_at_a_unit_that_does_not_start_as_its_user(tmp_path: Path) -> None:
    with open_machine(tmp_path) as machine:
        machine.write("/etc/iris/prices.json", "{}", 0o600)
        found = findings(machine, "iris@prices")
        assert [one["code"] for one in found.values() if one["level"] == "problem"] == ["credential-damaged"]
        assert "credential /run/credentials/iris-doctor-" in found["credential-damaged"]["cause"]
        assert "Iris home /var/lib/iris-prices" in found["home-ok"]["cause"]


@pytest.mark.long
@pytest.mark.skipif(bool(absent()), reason=absent())
def test_doctor_says_of_a_unit_what_keeps_it_from_starting(tmp_path: Path) -> None:
    with open_machine(tmp_path) as machine:
        done = machine.run("iris", "doctor", "--unit", "nothing")
        mend = "run: systemctl list-unit-files 'iris*'"
        assert (done.returncode, done.stderr) == (2, f"iris: there is no unit nothing.service: {mend}\n")
        machine.run("rm", "/etc/iris/prices.json")
        done = machine.run("iris", "doctor", "--unit", "iris@prices")
        absent_file = "the credential /etc/iris/prices.json that the unit iris@prices.service loads is not there"
        assert absent_file in done.stderr
        machine.write("/etc/iris/stock.env", "IRIS_ARGUMENTS=--drain-timeout soon\n")
        done = machine.run("iris", "doctor", "--unit", "iris@stock")
        assert (done.returncode, "Invalid value for '--drain-timeout'" in done.stderr) == (2, True)
        machine.run("rm", "-r", "/srv/iris")
        done = machine.run("iris", "doctor", "--unit", "iris@stock")
        assert "systemd cannot start a program with what the unit iris@stock.service has" in done.stderr


def test_the_command_lines_run_and_end_in_order(tmp_path: Path) -> None:
    with open_place() as place:
        seeds = ""
        for name in ("iris", "iris-bridge", "iris-gateway"):
            port = free_port()
            process, health = start_unit(place, tmp_path, name, seeds, port)
            seeds = seeds or f"tcp://127.0.0.1:{port}"
            assert is_healthy(health)
            if name != "iris":
                assert end(process, float(unit(UNITS[name])["TimeoutStopSec"][0])) == 0


def start_unit(place: Place, tmp_path: Path, name: str, seeds: str, port: int) -> tuple[subprocess.Popen[str], int]:
    """Start what systemd would: specifiers and variables are replaced as it does it (systemd.unit(5))."""
    settings, health = unit(UNITS[name]), free_port()
    credentials = tmp_path / f"{name}-credentials"
    credentials.mkdir(mode=0o700)
    cluster = {"iris": INSTANCE}.get(name, name.removeprefix("iris-"))
    os.link(place.credential(cluster, *OPTIONS[name]), credentials / "credential")
    run = place.terminal.directory.parent / f"run-{name}"
    specifiers = {"%d": str(credentials), "%S": str(tmp_path / f"{name}-state"), "%t": str(run), "%i": INSTANCE}

    def filled(text: str) -> str:
        return re.sub("%[dSti]", lambda match: specifiers[match[0]], text)

    environment = dict(one.split("=", 1) for line in settings["Environment"] for one in filled(line).split())
    for variable in ("IRIS_HOME", "XDG_RUNTIME_DIR"):  # StateDirectory=, RuntimeDirectory=
        Path(environment[variable]).mkdir(mode=0o700, parents=True)
    arguments = {
        "iris": f"--listen tcp://127.0.0.1:{port}",
        "iris-bridge": f"--listen tcp://127.0.0.1:{port} --topic orders.>",
        "iris-gateway": f"--site berlin --listen ws://127.0.0.1:{port}/gateway --export prices",
    }[name]
    environment["IRIS_SEEDS"] = seeds
    environment["IRIS_METRICS"] = f"127.0.0.1:{health}"
    command = shlex.split(filled(settings["ExecStart"][0]).replace("$IRIS_ARGUMENTS", arguments))
    command[0] = IRIS
    directory = tmp_path / f"{name}-work"
    directory.mkdir()
    module = (DEPLOY / "shop" / "shop.py").read_text()
    (directory / f"{INSTANCE}.py").write_text(
        module.replace("prices = iris.Service", "service = prices = iris.Service")
    )
    return place.start(command, environment, directory), health
