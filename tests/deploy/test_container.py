"""The container: its file names what is there, and its entry point makes private directories in volumes open to all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.deployments import DEPLOY, ROOT, missing

FILE = DEPLOY / "container" / "Containerfile"
ENTRY = DEPLOY / "container" / "entrypoint.sh"
INSTRUCTIONS = [
    line.split(None, 1)
    for line in FILE.read_text().replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
]
_NO_BUILDER = missing("buildah", "mmdebstrap")


def test_what_is_copied_is_there() -> None:
    sources = [
        source for name, rest in INSTRUCTIONS if name == "COPY" and "--from" not in rest for source in rest.split()[:-1]
    ]
    assert len(sources) > 5
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_it_runs_as_a_user_of_its_own_by_its_entry_point() -> None:
    assert [rest for name, rest in INSTRUCTIONS if name == "USER"] == ["10001:10001"]
    (entry,) = [json.loads(rest) for name, rest in INSTRUCTIONS if name == "ENTRYPOINT"]
    assert entry[0] == "/bin/sh"
    copied = {rest.split()[-1]: rest.split()[0] for name, rest in INSTRUCTIONS if name == "COPY"}
    assert copied[entry[1]] == "deploy/container/entrypoint.sh"
    assert any(name == "EXPOSE" and "9464" in rest.split() for name, rest in INSTRUCTIONS)


def test_the_entry_point_is_replaced_by_the_command_and_nothing_is_wrong_with_the_set_up() -> None:
    with tempfile.TemporaryDirectory(prefix="iris-") as volume:
        Path(volume).chmod(0o777)
        environment = {**os.environ, "IRIS_HOME": f"{volume}/home", "XDG_RUNTIME_DIR": f"{volume}/user"}
        doctor = [sys.executable, "-m", "iris", "doctor", "-o", "json", "-q"]
        done = subprocess.run(["/bin/sh", ENTRY, *doctor], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b""), done.stdout
        with subprocess.Popen(
            ["/bin/sh", ENTRY, sys.executable, "-c", "import os; print(os.getpid())"],
            env=environment,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert int(process.stdout.read()) == process.pid


@pytest.mark.long
@pytest.mark.skipif(bool(_NO_BUILDER), reason=_NO_BUILDER)
@pytest.mark.skipif(os.geteuid() != 0, reason="to build without a daemon in a test needs root")
def test_the_image_is_built_on_debian_and_doctor_finds_nothing_wrong_in_it(tmp_path: Path) -> None:
    """A base of Debian's packages stands for the one of a registry; Python's packages come from this machine."""
    wheels = tmp_path / "wheels"
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.findall(r'"([^"]+)"', project[project.index("dependencies = [") : project.index("[project.optional")])
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, "--only-binary=:all:"]
    run([*download, "--python-version=3.11", *needed, "setuptools>=77"])
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    base = tmp_path / "base.tar"
    run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-venv", "bookworm", base])
    buildah = ["buildah", "--storage-driver=vfs", f"--root={tmp_path}/storage", f"--runroot={tmp_path}/run"]
    container = run([*buildah, "from", "scratch"])
    run([*buildah, "add", container, base, "/"])
    run([*buildah, "commit", "--quiet", container, "localhost/base"])
    isolated = ["--isolation=chroot", f"--volume={settings}:/etc/pip.conf:ro", f"--volume={wheels}:/wheels:ro"]
    built = ["--build-arg=BASE=localhost/base", "--tag=localhost/iris", f"--file={FILE}", ROOT]
    run([*buildah, "bud", *isolated, *built])
    container = run([*buildah, "from", "localhost/iris"])
    entry = ["/bin/sh", "/usr/local/bin/iris-entrypoint"]
    inside = [*buildah, "run", "--isolation=chroot", "--user=10001:10001", container, "--", *entry]
    findings = [json.loads(line) for line in run([*inside, "iris", "doctor", "-o", "json"]).splitlines()]
    assert {finding["level"] for finding in findings} == {"ok"}, findings
    assert {"home-ok", "runtime-ok", "node-ok"} <= {finding["code"] for finding in findings}


def run(command: list[object]) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()
