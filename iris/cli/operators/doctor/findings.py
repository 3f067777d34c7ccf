"""Findings: what a check has found, its cause, and the command that mends it."""

from __future__ import annotations

import re
from typing import Final, Literal, final

from msgspec import Struct

Level = Literal["ok", "warning", "problem"]
"""``warning``: the node works, but not for long, or not as fast or as widely as it could; ``problem``: it does not."""

Code = Literal[
    "clock-ahead",
    "clock-behind",
    "clock-ok",
    "clock-peer",
    "realm-ok",
    "realm-unlinked",
    "credential-bundle",
    "credential-damaged",
    "credential-early",
    "credential-expired",
    "credential-expires",
    "credential-local",
    "credential-missing",
    "credential-needed",
    "credential-ok",
    "credential-passphrase",
    "credential-private",
    "credential-revoked",
    "credential-rotating",
    "dns-ok",
    "dns-unanswered",
    "dns-unknown",
    "files-few",
    "files-ok",
    "firewall-drops",
    "firewall-ok",
    "firewall-unseen",
    "home-ok",
    "home-private",
    "home-unwritable",
    "lan-alone",
    "lan-blocked",
    "lan-ok",
    "listen-absent",
    "listen-forbidden",
    "listen-malformed",
    "listen-ok",
    "listen-running",
    "listen-taken",
    "listen-unreachable",
    "metrics-absent",
    "metrics-ok",
    "metrics-running",
    "metrics-taken",
    "neighbour-unlinked",
    "node-fails",
    "node-ok",
    "packages-missing",
    "packages-ok",
    "packages-unfit",
    "python-ok",
    "python-old",
    "runtime-ok",
    "runtime-private",
    "runtime-stale",
    "runtime-unfit",
    "seed-foreign",
    "seed-malformed",
    "seed-many",
    "seed-none",
    "seed-ok",
    "seed-realm",
    "seed-refused",
    "seed-silent",
    "seed-unlinked",
    "seed-unreachable",
    "site-empty",
    "source-failed",
    "source-ok",
    "versions-differ",
    "versions-ok",
]
"""Stable words for scripts: the check and its finding.  Listed in docs/reference/doctor.md."""

_RUN: Final = re.compile(r"[:;] run(?: as root)?: (.+)\Z")


@final
class Diagnosis(Struct, frozen=True, kw_only=True):
    """The finding of a check.

    Args:
        code: a stable word for it.
        level: the severity.
        cause: one sentence for people.
        remedy: the command that mends it, or that shows more; empty where nothing is to be mended.
    """

    code: Code
    level: Level
    cause: str
    remedy: str = ""


def ok(code: Code, cause: str) -> Diagnosis:
    """Return a finding that nothing is wrong."""
    return Diagnosis(code=code, level="ok", cause=cause)


def warning(code: Code, cause: str, remedy: str) -> Diagnosis:
    """Return a finding of what works, but should be mended."""
    return Diagnosis(code=code, level="warning", cause=cause, remedy=remedy)


def problem(code: Code, cause: str, remedy: str) -> Diagnosis:
    """Return a finding of what does not work."""
    return Diagnosis(code=code, level="problem", cause=cause, remedy=remedy)


def split_remedy(text: str, otherwise: str) -> tuple[str, str]:
    """Return what an error says, and the command that it names at its end; ``otherwise`` where it names none."""
    found = _RUN.search(text)
    return (text, otherwise) if found is None else (text[: found.start()], found[1])
