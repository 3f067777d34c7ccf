"""systemd as the first process of namespaces: units run for real, and nothing of this machine is touched.

Its root is read-only; ``/etc``, ``/var``, ``/run``, ``/tmp``, ``/dev`` and what else is written to are its own.  It
loads units from its own ``/etc/systemd/system`` alone: none of the machine's, which begin by emptying ``/tmp``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from tests.support.deployments import ROOT, missing

_MANAGER: Final = Path("/usr/lib/systemd/systemd")
_PYTHON: Final = Path(os.path.realpath(sys.executable)).relative_to(sys.base_prefix)
_PATIENCE: Final = 20.0

_BEGIN: Final = r"""
set -eu
top=$1
mount --make-rprivate /
mount --bind "$top" /mnt
mkdir -p /mnt/dev /mnt/etc /mnt/opt
for file in passwd group nsswitch.conf hosts ld.so.cache machine-id localtime; do
    [ ! -e "/etc/$file" ] || cp -L "/etc/$file" /mnt/etc/
done
for device in null zero full random urandom tty; do
    touch "/mnt/dev/$device"
    mount --bind "/dev/$device" "/mnt/dev/$device"
done
for link in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
    ln -s "${link#*:}" "/mnt/dev/${link%%:*}"
done
mkdir /mnt/dev/pts /mnt/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts /mnt/dev/pts
ln -s pts/ptmx /mnt/dev/ptmx
mount -t tmpfs tmpfs /mnt/dev/shm
mkdir /mnt/opt/source /mnt/opt/packages /mnt/opt/python
mount --bind "$2" /mnt/opt/source
mount --bind "$3" /mnt/opt/packages
mount --bind "$4" /mnt/opt/python
mount -o remount,bind,ro /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
umount -R /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for place in dev etc opt; do
    mount --rbind "/mnt/$place" "/$place"
done
for place in run tmp var srv root home; do
    mount -t tmpfs -o mode=755 tmpfs "/$place"
done
chmod 1777 /tmp
mkdir -p /run/lock /var/lib /var/log /var/tmp /srv/iris
ip link set lo up
mount --make-rshared /
export container=iris SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/transient:/run/systemd/system
exec "$5" --system --unit=start.target --show-status=no --log-target=console --log-level=notice
"""

_UNITS: Final = {
    "dbus.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/dbus/system_bus_socket\n",
    "dbus.service": "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\n[Service]\nType=notify\nExecStart=/usr/bin/"
    "dbus-daemon --system --address=systemd: --nofork --nopidfile --systemd-activation --syslog-only\n",
    "start.target": "[Unit]\nDefaultDependencies=no\nRequires=dbus.service\nAfter=dbus.service\n",
}
"""What is there besides empty targets: the bus, by which programs speak with the system manager."""

_IRIS: Final = f"""\
#!/bin/sh
export PYTHONPATH=/opt/source:/opt/packages LD_LIBRARY_PATH=/opt/python/lib
exec /opt/python/{_PYTHON} -P -m iris "$@"
"""

_TARGETS: Final = (*("sysinit", "basic", "shutdown", "multi-user", "network-online", "network", "time-sync", "umount"),)


@final
class Systemd:
    """A system manager that runs: programs are started beside it.

    Args:
        process: the id of its first process, as this machine has it.
        top: the directory that it sees at ``/mnt``.
    """

    def __init__(self, process: int, top: Path) -> None:
        self._process = process
        self.top = top

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command as root of the system."""
        inside = ["nsenter", f"--target={self._process}", *_ENTERED, "--wd=/", "--"]
        kept = {"PATH": "/opt/iris/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        return subprocess.run(
            [*inside, *command], input=text, capture_output=True, text=True, check=False, timeout=120, env=kept
        )

    def wait(self, *command: str) -> str:
        """Run a command until it succeeds, and return its output."""
        until = time.monotonic() + _PATIENCE
        while (done := self.run(*command)).returncode:
            if time.monotonic() > until:
                raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of the system."""
        done = self.run(
            "sh", "-c", 'mkdir -p "${1%/*}" && cat > "$1" && chmod "$2" "$1"', "sh", path, f"{mode:o}", text=text
        )
        assert done.returncode == 0, done.stderr


_ENTERED: Final = ("--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup")


def absent() -> str:
    """Return why there can be no systemd here, for the reason of a skip; empty if there can."""
    if lacking := missing("unshare", "nsenter", "ip", "busctl", "dbus-daemon"):
        return lacking
    if not _MANAGER.exists():
        return "needs systemd"
    return "" if os.geteuid() == 0 else "namespaces with a system manager in them are made by root"


@contextmanager
def open_systemd(top: Path) -> Generator[Systemd]:
    """Start systemd; ``/opt/iris/bin/iris`` is this checkout.

    Args:
        top: an empty directory.
    """
    units = top / "etc/systemd/system"
    units.mkdir(parents=True)
    targets = {f"{name}.target": "[Unit]\nDefaultDependencies=no\n" for name in _TARGETS}
    for name, text in (targets | _UNITS).items():
        (units / name).write_text(text)
    program = top / "opt/iris/bin/iris"
    program.parent.mkdir(parents=True)
    program.write_text(_IRIS)
    program.chmod(0o755)
    top.chmod(0o755)
    places = [str(ROOT), sysconfig.get_path("purelib"), sys.base_prefix]
    hierarchy = next(path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if path.exists())
    group = hierarchy / f"iris-test-{os.getpid()}"
    group.mkdir()
    try:
        with (top / "log").open("w") as log:
            unshared = ["unshare", *_ENTERED, "--fork", "--kill-child", "--propagation=private"]
            enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            command = ["sh", "-c", enter, "sh", *unshared, "sh", "-c", _BEGIN, "sh"]
            process = subprocess.Popen(
                [*command, str(top), *places, str(_MANAGER)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield _started(process, top)
        finally:
            process.kill()
            process.wait()
    finally:
        _remove(group)


def _started(process: subprocess.Popen[bytes], top: Path) -> Systemd:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and process.poll() is None:
        for child in children.read_text().split():
            system = Systemd(int(child), top)
            if system.run("systemctl", "is-active", "start.target").returncode == 0:
                return system
    raise AssertionError((top / "log").read_text())


def _remove(group: Path) -> None:
    """Remove a control group and those below, once their processes are gone."""
    until = time.monotonic() + _PATIENCE
    while group.exists() and time.monotonic() < until:
        for below in sorted(group.rglob("*/"), reverse=True):
            with contextlib.suppress(OSError):
                below.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
