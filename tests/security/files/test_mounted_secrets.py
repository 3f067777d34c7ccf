"""Credentials as Kubernetes, Docker and systemd mount them, and what only looks like that.

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
from iris.security.files.private_files import _file_system

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


if sys.argv[2] == "root":
    load_all(0)
else:
    os.setgroups([GROUP])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, 0)
    load_all(USER)
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


SAFE = ["kubernetes", "kubernetes with a group", "docker", "docker for a user", "systemd", "systemd of root"]


@needs_mounts
def test_a_program_reads_its_secrets_as_they_are_mounted_and_nothing_that_only_looks_like_it(place: Path) -> None:
    try:
        told = load_as("user", place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert {name: told[name] for name in SAFE} == dict.fromkeys(SAFE, "shop")
    assert told["own, read-only, not in memory"] == "shop"
    assert told["kubernetes without the group"] == "credential FILE: Permission denied to user 1000"
    assert told["in memory, not read-only"] == (
        "credential FILE: belongs to user 0, not to user 1000, and anybody could have put it there: do not take it "
        "over; use another path, or have root remove it: rm -r FILE"
    )
    assert "is a symbolic link" in str(told["a link in memory, not read-only"])
    for name, owner in (("read-only, not in memory", 0), ("own and open, read-only, not in memory", 1000)):
        assert told[name] == (
            f"credential FILE: of user {owner} with mode 0444, on a read-only mount that is not in memory and may be "
            "there for others, too: mount it as a secret (of Kubernetes, of a Docker service, by LoadCredential= of "
            "systemd), or copy it to a file of user 1000 with mode 0400 before the program starts"
        )
    for name, mode in (("writable by all", "0666"), ("writable by a group", "0460")):
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
    assert (told["unchanged"], told["replaced"], told["taken"]) == (False, True, True)


@needs_mounts
def test_root_in_a_container_reads_them_too(place: Path) -> None:
    try:
        told = load_as("root", place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    taken = {name for name, outcome in told.items() if outcome == "shop"}
    assert taken == {*SAFE, "kubernetes without the group"} - {"docker for a user", "systemd"}
    for name in ("docker for a user", "systemd"):
        assert told[name] == (
            "credential FILE: a mounted secret that belongs to user 1000: mount it so that it belongs to root or to "
            "user 0"
        )


MOUNTS = """\
22 1 0:21 / / rw,relatime - ext4 /dev/root rw
65 22 0:39 / /run/secrets ro,relatime shared:7 master:1 - tmpfs tmpfs rw,size=4k
66 22 0:40 / /a\\040place ro,relatime - ramfs - rw
a line of another form
"""


@pytest.mark.parametrize(
    ("device", "kind"), [((0, 39), "tmpfs"), ((0, 40), "ramfs"), ((0, 21), "ext4"), ((0, 3), ""), ((8, 1), "")]
)
def test_the_file_system_of_a_device_is_found_among_the_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: tuple[int, int], kind: str
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(private_files, "_MOUNTS", tmp_path / "mountinfo")
    assert _file_system(os.makedev(*device)) == kind


def test_where_mounts_are_not_known_nothing_is_a_mounted_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_files, "_MOUNTS", tmp_path / "absent")
    assert _file_system(tmp_path.stat().st_dev) == ""


def test_the_mounts_of_this_system_are_read() -> None:
    if not private_files._MOUNTS.exists():
        pytest.skip("only Linux tells them")
    assert _file_system(Path("/proc").stat().st_dev) == "proc"
