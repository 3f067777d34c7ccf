"""The container: its file names what is there, and its entry point makes private directories in volumes open to all."""

from __future__ import annotations

import getpass
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import final

import pytest

from tests.support.deployments import DEPLOY, IRIS, ROOT, end, missing, open_place
from tests.support.ports import free_port

FILE = DEPLOY / "container" / "Containerfile"
ENTRY = DEPLOY / "container" / "entrypoint.sh"
INSTRUCTIONS = [
    line.split(None, 1)
    for line in FILE.read_text().replace("\\\n", " ").splitlines()
    if line and not line.startswith("#")
]
_NO_BUILDER = missing("buildah", "mmdebstrap", "podman", "runc")
_OWN_USERS = os.geteuid() == 0 or f"{getpass.getuser()}:" in Path("/etc/subuid").read_text()


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


_BUILDS = pytest.mark.timeout(1800)
"""Two minutes of a quiet machine, for packages of Debian and Python."""


@final
class Builder:
    """buildah and podman, with a storage that is forgotten.  Started by a user who is not root, all is rootless."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.image = "localhost/iris"
        self._state = tempfile.mkdtemp(prefix="iris-")  # podman takes no path of more than 50 characters
        self._storage = ["--storage-driver=overlay", f"--root={directory}/storage", f"--runroot={self._state}"]
        self._podman = [
            "podman",
            *self._storage,
            "--cgroup-manager=cgroupfs",
            "--events-backend=file",
            "--runtime=runc",
        ]

    def build(self) -> None:
        """Build on a base of Debian's packages, where a registry's would be; Python's come from this machine."""
        wheels, settings, base = (self.directory / name for name in ("wheels", "pip.conf", "base.tar"))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        needed = [*project["dependencies"], *extras["cli"], *extras["metrics"], "setuptools>=77"]
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, "--only-binary=:all:"]
        run([*download, "--python-version=3.11", *needed])
        settings.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        run(["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-venv", "bookworm", base])
        container = self.buildah("from", "scratch")
        self.buildah("add", container, base, "/")
        self.buildah("commit", "--quiet", container, "localhost/base")
        volumes = [f"--volume={settings}:/etc/pip.conf:ro", f"--volume={wheels}:/wheels:ro"]
        built = ["--build-arg=BASE=localhost/base", f"--tag={self.image}", f"--file={FILE}", ROOT]
        self.buildah("bud", "--isolation=chroot", *volumes, *built)

    def buildah(self, *arguments: object) -> str:
        """Return what it prints."""
        return run(["buildah", *self._storage, *arguments])

    def forget(self) -> None:
        """Remove the containers and images that are left."""
        run([*self._podman, "rm", "--all", "--force", "--time=0"])
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")
        shutil.rmtree(self._state)

    def container(self, *options: str) -> list[str]:
        """Return the command that runs a container which may write nowhere but in memory, and has no rights."""
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
        limits = [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={min(processes, 1024)}"]
        confined = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--tmpfs=/var/lib/iris"]
        return [*self._podman, "run", "--rm", "--network=host", *limits, *confined, *options, self.image]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Builder]:
    if _NO_BUILDER:
        pytest.skip(_NO_BUILDER)
    if not _OWN_USERS:
        pytest.skip("needs users of its own for containers, in /etc/subuid and /etc/subgid, or root")
    builder = Builder(tmp_path_factory.mktemp("image"))
    try:
        builder.build()
        yield builder
    finally:
        builder.forget()


@pytest.mark.long
@_BUILDS
def test_doctor_finds_nothing_wrong_in_a_container_that_is_read_only(builder: Builder) -> None:
    listed = run([*builder.container(), "iris", "doctor", "-o", "json"]).splitlines()
    findings = [json.loads(line) for line in listed if line.startswith("{")]
    assert {finding["level"] for finding in findings} == {"ok"}, findings
    assert {"home-ok", "runtime-ok", "node-ok"} <= {finding["code"] for finding in findings}
    inside = "test $(id -u) = 10001 && ! touch /x /opt/iris/x /srv/iris/x 2>&1 && grep CapEff /proc/self/status"
    assert run([*builder.container(), "sh", "-c", inside]).splitlines()[-1] == "CapEff:\t0000000000000000"


@pytest.mark.long
@_BUILDS
@pytest.mark.parametrize(
    ("options", "place"),
    [
        ((), "/tmp/iris"),  # Podman's --read-only covers /run, and leaves /tmp open
        (("--tmpfs=/run/iris",), "/tmp/iris"),
        (("--read-only-tmpfs=false", "--tmpfs=/run/iris"), "/run/iris"),  # as Docker's --read-only does it
    ],
)
def test_sockets_are_in_a_private_directory_where_the_container_may_write(
    builder: Builder, options: tuple[str, ...], place: str
) -> None:
    where = ["sh", "-c", "echo $XDG_RUNTIME_DIR $(stat -c %a,%u $XDG_RUNTIME_DIR)"]
    assert run([*builder.container(*options), *where]) == f"{place}/user 700,10001"


@pytest.mark.long
@_BUILDS
def test_a_container_that_may_write_nowhere_says_what_to_mount(builder: Builder) -> None:
    command = [*builder.container("--read-only-tmpfs=false"), "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "mount a tmpfs or a volume at /run/iris" in done.stderr


@pytest.mark.long
@_BUILDS
def test_a_member_in_a_container_is_asked_from_outside_and_asks_members_there(builder: Builder) -> None:
    """Orders, in the container, ask for prices and have each order stored by the bridge; both are outside."""
    with open_place() as place:
        ports = {name: free_port() for name in ("prices", "bridge", "orders")}
        seeds = {"IRIS_SEEDS": f"tcp://127.0.0.1:{ports['prices']}"}
        rights = {"prices": (), "bridge": ("--subscribe", ">"), "orders": ("--publish", "orders.>")}
        credentials = {name: place.credential(name, *options) for name, options in rights.items()}
        log = place.terminal.directory / "log"
        for name, verb in (
            ("prices", ["run", "shop:prices"]),
            ("bridge", ["bridge", "--topic", "orders.>", "--data", str(log)]),
        ):
            listening = ["--listen", f"tcp://127.0.0.1:{ports[name]}"]
            place.start([IRIS, *verb, *listening], {**seeds, "IRIS_CREDENTIAL": str(credentials[name])})
        credentials["orders"].chmod(0o444)
        mounted = f"--volume={credentials['orders']}:/run/secrets/orders:ro"
        options = [mounted, "--env=IRIS_CREDENTIAL=/run/secrets/orders", f"--env=IRIS_SEEDS={seeds['IRIS_SEEDS']}"]
        served = ["iris", "run", "orders:orders", "--listen", f"tcp://127.0.0.1:{ports['orders']}"]
        inside = place.start([*builder.container(*options), *served], {})
        asked = ("--credential", str(place.credential("askers")), "--seeds", seeds["IRIS_SEEDS"])
        done = place.terminal.run("request", "orders", "tea", "--wait", "20", "--timeout", "20", *asked)
        assert (done.returncode, done.stdout) == (0, b"295\n"), done.stderr
        assert end(inside, 60) == 0


def run(command: list[object] | list[str]) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout.strip()
