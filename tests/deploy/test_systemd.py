"""The units: verified by systemd, and their command lines run with the credential where systemd puts it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.deployments import DEPLOY, IRIS, Place, end, is_healthy, missing, open_place, unit
from tests.support.ports import free_port

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

    environment = dict(one.split("=", 1) for one in filled(settings["Environment"][0]).split())
    for variable in ("IRIS_HOME", "XDG_RUNTIME_DIR"):  # StateDirectory=, RuntimeDirectory=
        Path(environment[variable]).mkdir(mode=0o700, parents=True)
    arguments = {
        "iris": f"--listen tcp://127.0.0.1:{port}",
        "iris-bridge": f"--listen tcp://127.0.0.1:{port} --topic orders.>",
        "iris-gateway": f"--site berlin --listen ws://127.0.0.1:{port}/gateway --export prices",
    }[name]
    environment["IRIS_SEEDS"] = seeds
    command = shlex.split(filled(settings["ExecStart"][0]).replace("$IRIS_ARGUMENTS", arguments))
    command[0] = IRIS
    command[command.index("--metrics") + 1] = f"127.0.0.1:{health}"
    directory = tmp_path / f"{name}-work"
    directory.mkdir()
    module = (DEPLOY / "shop" / "shop.py").read_text()
    (directory / f"{INSTANCE}.py").write_text(
        module.replace("prices = iris.Service", "service = prices = iris.Service")
    )
    return place.start(command, environment, directory), health
