"""The credential: whether it can be read, is private to this user, is valid today, and is not revoked."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from pathlib import Path
from typing import Final

from iris.cli.operators.doctor.findings import Code, Diagnosis, ok, problem, split_remedy, warning
from iris.kernel.errors import ConfigError
from iris.security.authority import FaultKind, check_credential
from iris.security.files import load_credential
from iris.security.identity import Credential, RevocationList

_CODES: Final[dict[FaultKind, Code]] = {
    "early": "credential-early",
    "expired": "credential-expired",
    "expires": "credential-expires",
    "rotating": "credential-rotating",
    "bundle": "credential-bundle",
    "revoked": "credential-revoked",
}
_FATAL: Final = frozenset({"early", "expired", "revoked"})


def read_credential(path: Path, passphrase: str | None) -> tuple[Credential | None, Diagnosis | None]:
    """Return the credential in a file, or what keeps it from being read."""
    try:
        return load_credential(path, passphrase=passphrase), None
    except ConfigError as error:
        return None, _unreadable(path, str(error))


def examine_credential(
    path: Path, credential: Credential, *, wall_now: float, revocations: RevocationList | None
) -> list[Diagnosis]:
    """Look at the dates of a credential, and whether it is revoked."""
    file = shlex.quote(str(path))
    found: list[Diagnosis] = []
    for fault in check_credential(credential, wall_now=wall_now, revocations=revocations):
        cause = f"{path}: {fault.text.partition(': ')[0]}"
        make = problem if fault.kind in _FATAL else warning
        found.append(make(_CODES[fault.kind], cause, _remedy(fault.kind, file, credential)))
    if not any(finding.level == "problem" for finding in found):
        kind = "sealed, for one machine" if credential.sealed else "portable"
        found.insert(
            0, ok("credential-ok", f"{path}: cluster {credential.name} of realm {credential.realm_id}, {kind}")
        )
    return found


def revoked(path: Path, reason: str, credential: Credential) -> Diagnosis:
    """Return the finding for a credential that other nodes say is revoked."""
    return problem("credential-revoked", f"{path}: {reason}", _new(credential))


def _remedy(kind: FaultKind, file: str, credential: Credential) -> str:
    match kind:
        case "early":
            return f"date -u; iris keys refresh REALM_FILE {file}"
        case "revoked":
            return _new(credential)
        case "bundle":
            return f"iris keys trust REALM_FILE BUNDLE && iris keys refresh REALM_FILE {file}"
        case _ if credential.sealed:
            return f"iris keys seal CLUSTER_CREDENTIAL --previous {file} --out NEW_FILE && mv NEW_FILE {file}"
        case _:
            return f"iris keys refresh REALM_FILE {file}"


def _new(credential: Credential) -> str:
    return f"iris keys cluster REALM_FILE {credential.name} --out NEW_FILE"


def _unreadable(path: Path, text: str) -> Diagnosis:
    file = shlex.quote(str(path))
    again = f"iris keys cluster REALM_FILE CLUSTER --out {file}"
    try:
        status = path.lstat()
    except PermissionError:
        return problem("credential-private", text, f"ls -ld {shlex.quote(str(path.parent))}")
    except (OSError, ValueError):
        return problem("credential-missing", text, again)
    if "passphrase" in text:
        return problem("credential-passphrase", text, f"IRIS_PASSPHRASE=PASSPHRASE iris doctor --credential {file}")
    cause, remedy = split_remedy(text, "")
    is_own = status.st_uid == os.geteuid()
    if stat.S_ISREG(status.st_mode) and (remedy or not is_own or os.strerror(errno.EACCES) in text):
        return problem("credential-private", cause, remedy or (f"chmod 600 {file}" if is_own else f"ls -l {file}"))
    # Whatever is there stays: it may be the key of the realm, or a device.
    return problem("credential-damaged", text, "iris keys cluster REALM_FILE CLUSTER --out NEW_FILE")
