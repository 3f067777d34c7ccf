"""Set-ups of a node that are broken in one way each: what ``iris doctor`` is to say of them.

Two machines: a *patient*, on which ``iris doctor`` is run, and an *office* with a member of the same realm.  Real
processes in network namespaces; faked is the date only, by libfaketime.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

from tests.support.command import Terminal
from tests.support.machines import APP, Machine, open_machines, why_no_wall

_FAKETIME = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), *Path("/usr/lib").glob("faketime/libfaketime.so.1")]
_NAME_SERVER = """
import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind((sys.argv[1], 53))
print("ready", flush=True)
while True:
    question, asker = one.recvfrom(512)
    one.sendto(question[:2] + bytes((0x81, 0x83)) + question[4:6] + bytes(6) + question[12:], asker)
"""
"""A name server that knows no name: it answers each question with NXDOMAIN (RFC 1035, 4.1.1)."""

_SILENT = """
import socket, sys, time
one = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
time.sleep(600)
"""
"""A program that takes connections and says nothing."""


def why_no_rehearsal() -> str:
    """Return why no set-up can be broken here; empty if all can."""
    reason = why_no_wall()
    if reason or _FAKETIME:
        return reason
    return "clocks are wrong by the library faketime (Debian: apt install faketime)"


@final
class Rehearsal:
    """A patient and an office, both in order: a break is what a test makes of it."""

    def __init__(self, patient: Machine, office: Machine, stack: ExitStack) -> None:
        self.patient = patient
        self.office = office
        self.stack = stack
        self.credential = patient.terminal.directory / "credential"
        self.realm = office.terminal.directory / "realm.key"
        self.home = Path(patient.terminal.environment["IRIS_HOME"])
        self.arguments = ["--credential", "credential", "--seeds", office.url, "--listen", patient.url]
        self.dated = "-2d"
        """Date of the credentials, relative to now."""

    def issue(self) -> None:
        """Make a realm and a credential for each machine, two days ago."""
        terminal = self.office.terminal
        self.keys("realm", str(self.realm))
        self.keys("cluster", str(self.realm), "databases", "--out", str(terminal.directory / "credential"))
        self.keys("cluster", str(self.realm), "askers", "--out", str(self.credential))
        (terminal.directory / "app.py").write_text(APP)

    def keys(self, *arguments: str, dated: str | None = None, realm: Terminal | None = None) -> None:
        """Run ``iris keys`` at the office, at another date."""
        terminal = realm or self.office.terminal
        with at_date(terminal, self.dated if dated is None else dated):
            done = terminal.run("keys", *arguments)
        assert done.returncode == 0, done.stderr.decode()

    def serve(self) -> None:
        """Start the member."""
        serving = self.office.terminal.started(
            *("run", "app:databases", "--credential", "credential", "--listen", self.office.url),
            announces="serves databases",
        )
        self.stack.enter_context(serving)

    def program(self, machine: Machine, code: str, *arguments: str) -> None:
        """Run a program that is not Iris, until the end of the test."""
        command = ["ip", "netns", "exec", machine.namespace, sys.executable, "-c", code, *arguments]
        running = self.stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        self.stack.callback(running.kill)
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"

    def name_server(self, address: str) -> None:
        """Have the patient ask the name server at an address."""
        folder = Path("/etc/netns") / self.patient.namespace
        folder.mkdir(parents=True)
        self.stack.callback(shutil.rmtree, folder)
        (folder / "resolv.conf").write_text(f"nameserver {address}\noptions timeout:1 attempts:1\n")

    def examine(self, *, prefix: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Run ``iris doctor`` and return its findings.  Its status is checked: 1 if there is a problem."""
        terminal = self.patient.terminal
        if prefix:
            terminal = Terminal(terminal.directory.parent, ("ip", "netns", "exec", self.patient.namespace, *prefix))
        done = terminal.run("doctor", "-o", "json", *self.arguments)
        findings: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        problems = any(finding["level"] == "problem" for finding in findings)
        assert (done.returncode, done.stderr) == (int(problems), b""), (findings, done.stderr.decode())
        return findings


@contextmanager
def open_rehearsal() -> Generator[Rehearsal]:
    """Make two machines with a credential of one realm each."""
    with open_machines() as (patient, office), ExitStack() as stack:
        rehearsal = Rehearsal(patient, office, stack)
        rehearsal.issue()
        yield rehearsal


@contextmanager
def at_date(terminal: Terminal, offset: str) -> Generator[None]:
    """Have the clock of all that is run in a terminal differ, as faketime says it: ``-2d``, ``+1h``."""
    fake_date(terminal, offset)
    yield
    for name in ("LD_PRELOAD", "FAKETIME"):
        del terminal.environment[name]


def fake_date(terminal: Terminal, offset: str) -> None:
    """Have it differ from now on."""
    terminal.environment |= {"LD_PRELOAD": str(_FAKETIME[0]), "FAKETIME": offset}


Break = Callable[[Rehearsal], None]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A set-up that is broken in one way.

    Args:
        symptom: what is wrong, as docs/reference/doctor.md has it.
        codes: of all findings that are not ok; the first is the one that names the break.
        make: breaks it; None: nothing is to be done beyond ``arguments`` or ``prefix``.
        prefix: a command that runs ``iris doctor``.
        serves: whether a member runs at the office.
    """

    symptom: str
    codes: tuple[str, ...]
    make: Break
    prefix: tuple[str, ...] = ()
    serves: bool = True


SETUPS: dict[str, Setup] = {}


def broken(symptom: str, *codes: str, prefix: tuple[str, ...] = (), serves: bool = True) -> Callable[[Break], Break]:
    """Register a way to break a set-up, under the name of the function."""

    def register(make: Break) -> Break:
        SETUPS[make.__name__] = Setup(symptom=symptom, codes=codes, make=make, prefix=prefix, serves=serves)
        return make

    return register


@broken("the credential file is not there", "credential-missing")
def no_credential(here: Rehearsal) -> None:
    here.credential.unlink()


@broken("the credential can be read by others", "credential-private")
def open_credential(here: Rehearsal) -> None:
    here.credential.chmod(0o644)


@broken("the credential belongs to another user", "credential-private")
def foreign_credential(here: Rehearsal) -> None:
    os.chown(here.credential, 12345, 12345)


@broken("the credential was cut off when it was copied", "credential-damaged")
def damaged_credential(here: Rehearsal) -> None:
    here.credential.write_bytes(here.credential.read_bytes()[:200])


@broken("the credential is wrapped, and the passphrase is not given", "credential-passphrase")
def wrapped_credential(here: Rehearsal) -> None:
    here.credential.unlink()
    here.office.terminal.environment["IRIS_PASSPHRASE"] = "correct horse"
    try:
        here.keys("cluster", str(here.realm), "askers", "--passphrase", "--out", str(here.credential))
    finally:
        del here.office.terminal.environment["IRIS_PASSPHRASE"]


@broken("the credential has expired", "credential-expired")
def expired_credential(here: Rehearsal) -> None:
    here.credential.unlink()
    here.keys("cluster", str(here.realm), "askers", "--days", "1", "--out", str(here.credential))


@broken("the credential was issued on a machine whose clock is two days ahead", "credential-early")
def early_credential(here: Rehearsal) -> None:
    here.credential.unlink()
    here.keys("cluster", str(here.realm), "askers", "--out", str(here.credential), dated="+2d")


@broken("the credential is revoked, as the other nodes know", "credential-revoked")
def revoked_credential(here: Rehearsal) -> None:
    fingerprint = json.loads(here.office.terminal.run("keys", "show", "--json", "credential").stdout)["realm"]
    lists = Path(here.office.terminal.environment["IRIS_HOME"]) / "revocations"
    lists.mkdir(mode=0o700, parents=True)
    lists.parent.chmod(0o700)
    here.keys("revoke", str(here.realm), "--cluster", "askers", "--out", str(lists / fingerprint))


@broken("no credential is given, and the seeds are on other machines", "credential-needed")
def forgotten_credential(here: Rehearsal) -> None:
    del here.arguments[:2]


@broken("the credential is of another realm than the seed", "seed-realm")
def other_realm(here: Rehearsal) -> None:
    here.credential.unlink()
    other = str(here.office.terminal.directory / "other.key")
    here.keys("realm", other)
    here.keys("cluster", other, "askers", "--out", str(here.credential))


@broken("the clock is two hours behind", "clock-behind")
def late_clock(here: Rehearsal) -> None:
    fake_date(here.patient.terminal, "-2h")


@broken("the clock is three days behind, and the credential not valid yet by it", "clock-behind")
def very_late_clock(here: Rehearsal) -> None:
    fake_date(here.patient.terminal, "-3d")


@broken("the clock is two hours ahead", "clock-ahead")
def early_clock(here: Rehearsal) -> None:
    fake_date(here.patient.terminal, "+2h")


@broken("the clock is two years ahead, and the credential expired by it", "clock-ahead")
def very_early_clock(here: Rehearsal) -> None:
    fake_date(here.patient.terminal, "+730d")


@broken("another program listens at the port", "listen-taken")
def taken_port(here: Rehearsal) -> None:
    here.program(here.patient, _SILENT, here.patient.address, "7000")


@broken("the address to listen at is not one of this machine", "listen-absent")
def absent_address(here: Rehearsal) -> None:
    here.arguments[-1] = "tcp://10.99.0.1:7000"


@broken("this machine's firewall lets nobody in", "listen-unreachable", "firewall-drops")
def walled_in(here: Rehearsal) -> None:
    here.patient.turn_away_callers()


@broken("nobody listens at the seed", "seed-refused", serves=False)
def absent_seed(here: Rehearsal) -> None:
    """Nothing is to be done: no member runs."""


@broken("the firewall of the seed's machine lets nobody in", "seed-silent")
def walled_off(here: Rehearsal) -> None:
    here.office.turn_away_callers()


@broken("there is no route to the seed", "seed-unreachable")
def no_route(here: Rehearsal) -> None:
    here.arguments[here.arguments.index(here.office.url)] = "tcp://10.99.0.1:7000"


@broken("what listens at the seed is no node", "seed-foreign", serves=False)
def foreign_program(here: Rehearsal) -> None:
    here.program(here.office, _SILENT, here.office.address, "7000")


@broken("the name of the seed is not known", "dns-unknown")
def unknown_name(here: Rehearsal) -> None:
    here.name_server(here.office.address)
    here.program(here.office, _NAME_SERVER, here.office.address)
    here.arguments[here.arguments.index(here.office.url)] = "tcp://databases.example:7000"


@broken("no name server answers", "dns-unanswered")
def no_name_server(here: Rehearsal) -> None:
    here.name_server(here.office.address)
    here.arguments[here.arguments.index(here.office.url)] = "tcp://databases.example:7000"


@broken("the firewall drops multicast DNS", "lan-blocked", "firewall-drops")
def no_multicast(here: Rehearsal) -> None:
    here.patient.drop_datagrams(5353)


@broken("fewer files may be open than links to all nodes take", "files-few", prefix=("prlimit", "--nofile=64:64"))
def few_files(here: Rehearsal) -> None:
    """Nothing is to be done: the command that runs ``iris doctor`` sets the limit."""


@broken("XDG_RUNTIME_DIR can be written to by others", "runtime-unfit")
def open_runtime(here: Rehearsal) -> None:
    directory = here.patient.terminal.directory.parent / "run"
    directory.mkdir()
    directory.chmod(0o777)
    here.patient.terminal.environment["XDG_RUNTIME_DIR"] = str(directory)


@broken("a process was killed and left its socket behind", "runtime-stale")
def stale_socket(here: Rehearsal) -> None:
    terminal = here.patient.terminal
    (terminal.directory / "app.py").write_text(APP)
    serve = ("run", "app:databases", "--credential", "credential", "--cluster", "askers")
    with terminal.started(*serve, announces="serves askers") as process:
        process.kill()
        process.wait()


@broken("the home of Iris is open to others", "home-private")
def open_home(here: Rehearsal) -> None:
    here.home.mkdir(exist_ok=True)
    here.home.chmod(0o755)


@broken("the home of Iris is on a read-only file system", "home-unwritable")
def read_only_home(here: Rehearsal) -> None:
    here.home.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "none", str(here.home)], check=True)
    here.stack.callback(lambda: subprocess.run(["umount", str(here.home)], check=True))


@broken("a package is older than Iris needs", "packages-unfit")
def old_package(here: Rehearsal) -> None:
    packages = here.patient.terminal.directory.parent / "packages"
    installed = packages / "msgpack-0.6.2.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: msgpack\nVersion: 0.6.2\n")
    here.patient.terminal.environment["PYTHONPATH"] = f"{packages}:{Path(__file__).resolve().parents[2]}"
