"""Credentials as Kubernetes, Docker, Compose and systemd mount them, as Vault writes them, and what only looks like it.

With real mounts, in a namespace of their own; a user who may not make any sees only how mounts are distinguished.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from iris.security.files import private_files

_MAY_MOUNT = (
    os.geteuid() == 0
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
)
needs_mounts = pytest.mark.skipif(not _MAY_MOUNT, reason="mounts are made by root, where the system lets it (unshare)")

_ALONE = """
import json, os, subprocess, sys, time
from pathlib import Path

from iris.kernel.errors import ConfigError
from iris.security.authority import issuing
from iris.security.files.credential_file import encode_credential, load_credential
from iris.security.files.credential_file import CredentialWatch
from iris.security.files.private_files import make_private_directory

USER, GROUP, OTHER = 1000, 2000, 3000
top = Path(sys.argv[1])
realm = issuing.create_realm(os.urandom)
realm, credential = issuing.issue_cluster(realm, "shop", entropy=os.urandom, wall_now=time.time())
DATA = encode_credential(credential)


def run(*command):
    subprocess.run(command, check=True)


def mount(kind="tmpfs", mode=0o755):
    "Return a place that is written to, and the same as the program sees it, read-only."
    number = len(list(top.iterdir()))
    inside, seen = top / f"{number}-inside", top / f"{number}-seen"
    inside.mkdir()
    seen.mkdir()
    if kind != "disk":
        run("mount", "-t", kind, "secret", str(inside))
    inside.chmod(mode)
    run("mount", "--bind", str(inside), str(seen))
    run("mount", "-o", "remount,bind,ro", str(seen))
    return inside, seen


def put(file, mode, owner=0, group=0):
    file.write_bytes(DATA)
    file.chmod(mode)
    os.chown(file, owner, group)


def publish(inside, version, mode, group=0):
    "As the kubelet does: a directory for each version, and a link that is replaced at once."
    (inside / version).mkdir()
    put(inside / version / "credential", mode, 0, group)
    os.symlink(version, inside / "..data_tmp")
    os.rename(inside / "..data_tmp", inside / "..data")
    if not os.path.lexists(inside / "credential"):
        os.symlink("..data/credential", inside / "credential")


def kubernetes(mode, group=0):
    inside, seen = mount(mode=0o1777)
    publish(inside, "..2026_01_01", mode, group)
    return seen / "credential"


def plain(kind, mode, owner=0, group=0, directory=0o755):
    inside, seen = mount(kind, directory)
    put(inside / "credential", mode, owner, group)
    return seen / "credential"


def systemd(mode, owner=0, group=0):
    inside, seen = mount("ramfs", 0o550)
    put(inside / "credential", mode, owner, group)
    os.chown(inside, owner, group)
    return seen / "credential"


def writable(mode):
    inside, _ = mount(mode=0o1777)
    put(inside / "credential", mode)
    return inside / "credential"


def writable_link():
    inside, _ = mount(mode=0o1777)
    publish(inside, "..2026_01_01", 0o644)
    return inside / "credential"


def compose(mode, owner=0, read_only=True):
    "As Compose and Podman do it: the file of the host, mounted by itself."
    number = len(list(top.iterdir()))
    host, seen = top / f"{number}-host", top / f"{number}-seen"
    host.mkdir(0o700)
    put(host / "credential", mode, owner)
    seen.touch()
    run("mount", "--bind", str(host / "credential"), str(seen))
    if read_only:
        run("mount", "-o", "remount,bind,ro", str(seen))
    return seen


def vault(mode, owner):
    "As Vault's injector does it: memory of the pod, in which the agent writes."
    inside, _ = mount(mode=0o777)
    put(inside / "credential", mode, owner)
    return inside / "credential"


def memory_of_the_machine():
    "As ProtectSystem=strict shows it to a unit."
    run("mount", "-t", "tmpfs", "memory", "/var/tmp")
    put(Path("/var/tmp/credential"), 0o444)
    run("mount", "-o", "remount,bind,ro", "/var/tmp")
    return Path("/var/tmp/credential")


def anothers_link():
    inside, seen = mount(mode=0o1777)
    put(inside / "real", 0o444)
    os.symlink("real", inside / "credential")
    os.chown(inside / "credential", OTHER, OTHER, follow_symlinks=False)
    return seen / "credential"


def link_to_a_disk():
    away = top / "away"
    away.mkdir()
    put(away / "credential", 0o600, USER)
    inside, seen = mount(mode=0o1777)
    os.symlink(away / "credential", inside / "credential")
    return seen / "credential"


cases = {
    "kubernetes": kubernetes(0o644),
    "kubernetes with a group": kubernetes(0o440, GROUP),
    "kubernetes without the group": kubernetes(0o440, OTHER),
    "docker": plain("tmpfs", 0o444),
    "docker for a user": plain("tmpfs", 0o400, USER),
    "systemd": systemd(0o400, USER),
    "systemd of root": systemd(0o440, 0, GROUP),
    "compose": compose(0o444),
    "compose, of the host's user": compose(0o644, OTHER),
    "compose, own": compose(0o400, USER),
    "compose, writable by a group": compose(0o664, OTHER),
    "mounted alone, not read-only": compose(0o444, OTHER, read_only=False),
    "vault": vault(0o644, 100),
    "vault, for this user alone": vault(0o400, USER),
    "vault, for this user, open": vault(0o644, USER),
    "memory of the machine": memory_of_the_machine(),
    "in memory, not read-only": writable(0o444),
    "a link in memory, not read-only": writable_link(),
    "read-only, not in memory": plain("disk", 0o444),
    "own, read-only, not in memory": plain("disk", 0o400, USER),
    "own and open, read-only, not in memory": plain("disk", 0o444, USER),
    "writable by all": plain("tmpfs", 0o666),
    "writable by a group": plain("tmpfs", 0o460, 0, GROUP),
    "of another user": plain("tmpfs", 0o444, OTHER),
    "a link of another user": anothers_link(),
    "a link that leads to a disk": link_to_a_disk(),
}
inside, seen = mount(mode=0o1777)
publish(inside, "..2026_01_01", 0o644)
told = {}


def load_all(user):
    for name, path in cases.items():
        try:
            told[name] = load_credential(path).name
        except ConfigError as error:
            told[name] = str(error).replace(str(path), "FILE")


state = top / "state"
state.mkdir(mode=0o700)
os.chown(state, USER, USER)
for link, owner in (("of root", 0), ("of another user", OTHER), ("of this user", USER)):
    os.symlink("state", top / link)
    os.chown(top / link, owner, owner, follow_symlinks=False)


def make_homes():
    for link in ("of root", "of another user", "of this user"):
        try:
            told[f"a home behind a link {link}"] = str(make_private_directory(top / link, "home").name)
        except ConfigError as error:
            told[f"a home behind a link {link}"] = str(error).partition(": ")[2]


if sys.argv[2] == "root":
    load_all(0)
else:
    os.setgroups([GROUP])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, 0)
    load_all(USER)
    make_homes()
    watch = CredentialWatch(seen / "credential")
    told["unchanged"] = watch.poll()
    os.seteuid(0)
    _, credential = issuing.issue_cluster(realm, "shop", entropy=os.urandom, wall_now=time.time())
    DATA = encode_credential(credential)
    publish(inside, "..2026_01_02", 0o644)
    os.seteuid(USER)
    told["replaced"] = watch.poll()
    told["taken"] = watch.credential.certificate.public_key == credential.certificate.public_key
print(json.dumps(told))
"""


def load_as(user: str, tmp_path: Path) -> Mapping[str, object]:
    tmp_path.chmod(0o755)
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", _ALONE, str(tmp_path), user],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told: Mapping[str, object] = json.loads(done.stdout)
    return told


@pytest.fixture
def place() -> Path:
    """A directory that other users can reach; pytest's own they cannot."""
    return Path(tempfile.mkdtemp())


SAFE = [
    *("kubernetes", "kubernetes with a group", "docker", "docker for a user", "systemd", "systemd of root"),
    *("compose", "compose, of the host's user", "compose, own", "vault, for this user alone"),
]


@needs_mounts
def test_a_program_reads_its_secrets_as_they_are_mounted_and_nothing_that_only_looks_like_it(place: Path) -> None:
    try:
        told = load_as("user", place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert {name: told[name] for name in SAFE} == dict.fromkeys(SAFE, "shop")
    assert told["own, read-only, not in memory"] == "shop"
    assert told["kubernetes without the group"] == "credential FILE: Permission denied to user 1000"
    for name, owner, mode in (
        ("in memory, not read-only", 0, "0444"),
        ("vault", 100, "0644"),
        ("vault, for this user, open", 1000, "0644"),
    ):
        assert told[name] == (
            f"credential FILE: of user {owner} with mode {mode}, in memory that others write to: have it written for "
            "user 1000 alone, with mode 0400 (Vault's injector: annotations "
            'vault.hashicorp.com/agent-run-as-same-user: "true" and vault.hashicorp.com/agent-inject-perms-credential: '
            '"0400"; Vault\'s agent: user and perms in its template)'
        )
    assert told["mounted alone, not read-only"] == (
        "credential FILE: belongs to user 3000, not to user 1000: run as root: chown 1000 FILE"
    )
    assert "is a symbolic link" in str(told["a link in memory, not read-only"])
    for name, owner in (
        ("read-only, not in memory", 0),
        ("own and open, read-only, not in memory", 1000),
        ("memory of the machine", 0),
    ):
        assert told[name] == (
            f"credential FILE: of user {owner} with mode 0444, on a read-only mount that may be there for others, "
            "too: mount the file by itself, mount it as a secret (of Kubernetes, of a Docker service, by "
            "LoadCredential= of systemd), or copy it to a file of user 1000 with mode 0400 before the program starts"
        )
    for name, mode in (
        ("writable by all", "0666"),
        ("writable by a group", "0460"),
        ("compose, writable by a group", "0664"),
    ):
        assert told[name] == (
            f"credential FILE: a mounted secret that others can write to (mode {mode}): mount it with mode 0400, 0440 "
            "or 0444"
        )
    assert told["of another user"] == (
        "credential FILE: a mounted secret that belongs to user 3000: mount it so that it belongs to root or to user "
        "1000"
    )
    assert "is a symbolic link" in str(told["a link of another user"])
    assert "is a symbolic link" in str(told["a link that leads to a disk"])
    assert told["a home behind a link of root"] == "of root"
    for link in ("of another user", "of this user"):
        assert str(told[f"a home behind a link {link}"]).startswith("is a symbolic link: give the real path")
    assert (told["unchanged"], told["replaced"], told["taken"]) == (False, True, True)


@needs_mounts
def test_root_in_a_container_reads_them_too(place: Path) -> None:
    try:
        told = load_as("root", place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    taken = {name for name, outcome in told.items() if outcome == "shop"}
    users = {"docker for a user", "systemd", "vault, for this user alone"}
    assert taken == {*SAFE, "kubernetes without the group"} - users
    for name in ("docker for a user", "systemd"):
        assert told[name] == (
            "credential FILE: a mounted secret that belongs to user 1000: mount it so that it belongs to root or to "
            "user 0"
        )


MOUNTS = """\
22 1 0:21 / / rw,relatime - ext4 /dev/root rw
65 22 0:39 / /run/secrets ro,relatime shared:7 master:1 - tmpfs tmpfs rw,size=4k
66 22 0:40 / /a\\040place ro,relatime - ramfs - rw
67 22 0:22 / /run rw,relatime - tmpfs tmpfs rw
a line of another form
"""


@pytest.mark.parametrize(
    ("number", "point", "apart"),
    [(65, "/run/secrets", True), (66, "/a place", True), (22, "/", False), (67, "/run", False)],
)
def test_the_mount_of_an_open_file_is_found_among_the_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, point: str, *, apart: bool
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    (tmp_path / "0").write_text(f"pos:\t0\nflags:\t02\nmnt_id:\t{number}\nino:\t3\n")
    monkeypatch.setattr(private_files, "_MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(private_files, "_DESCRIPTORS", tmp_path)
    mount = private_files.mount_of(0)
    assert mount is not None
    assert (mount.point, mount.is_apart_in_memory) == (point, apart)


def test_where_mounts_are_not_known_nothing_is_a_mounted_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_files, "_MOUNTS", tmp_path / "absent")
    with (tmp_path / "file").open("w") as file:
        assert private_files.mount_of(file.fileno()) is None


def test_the_mounts_of_this_system_are_read() -> None:
    if not private_files._MOUNTS.exists():
        pytest.skip("only Linux tells them")
    with Path("/proc/version").open() as file:
        mount = private_files.mount_of(file.fileno())
        assert mount is not None
        assert mount.point == "/proc"
