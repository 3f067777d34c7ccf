"""The firewall of this machine: which ports its rules for nftables drop what arrives at, as far as they can be read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

from iris.cli.operators.doctor.findings import Diagnosis, ok, warning

_PATIENCE: Final = 5.0
_DROPS: Final = ("drop", "reject")


def read_rules() -> str | None:
    """Return the rules as JSON; None where this user cannot read them, or there is no nft."""
    if os.geteuid() != 0 or (nft := shutil.which("nft")) is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a constant command, of root's own PATH
            [nft, "--json", "list", "ruleset"], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def examine_firewall(rules: str | None, ports: tuple[int, ...]) -> Diagnosis:
    """Look for rules that drop what arrives from outside.  Whether they do at a port, only a peer can tell for sure.

    Args:
        rules: the output of ``nft --json list ruleset``; None: they cannot be read.
        ports: TCP ports at which this node is to be reached.
    """
    if rules is None:
        cause = "the rules of the firewall cannot be read by this user; what counts is whether seeds reach back"
        return ok("firewall-unseen", cause)
    try:
        dropping = sorted(set(_dropping(rules)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ok("firewall-unseen", "the rules of the firewall are not of a form that is known here")
    if not dropping:
        return ok("firewall-ok", "no rule of nftables drops what arrives")
    family, table, chain = dropping[0]
    cause = f"chain {chain} of table {family} {table} drops some of what arrives"
    shown = f"{{ {', '.join(map(str, ports))} }}" if len(ports) > 1 else "".join(map(str, ports))
    return warning("firewall-drops", cause, opening(rules, f"tcp dport {shown}" if shown else ""))


def opening(rules: str | None, match: str) -> str:
    """Return the command that lets in what matches, or one that shows the rules where none is known to drop it.

    Args:
        rules: see ``examine_firewall``.
        match: such as ``tcp dport 7000``; empty: the chain is shown.
    """
    try:
        dropping = sorted(set(_dropping(rules or '{"nftables": []}')))
    except (ValueError, KeyError, TypeError, AttributeError):
        dropping = []
    if not dropping:
        return "nft list ruleset"
    place = " ".join(dropping[0])
    return f"nft insert rule {place} {match} accept" if match else f"nft list chain {place}"


def _dropping(rules: str) -> Iterator[tuple[str, str, str]]:
    """Yield family, table and name of the input chains that drop by default, or have a rule that does."""
    entries: list[dict[str, Any]] = json.loads(rules)["nftables"]
    inputs: set[tuple[str, str, str]] = set()
    for entry in entries:
        if (chain := entry.get("chain")) and chain.get("hook") == "input":
            place = (str(chain["family"]), str(chain["table"]), str(chain["name"]))
            inputs.add(place)
            if chain.get("policy") == "drop":
                yield place
    for entry in entries:
        if rule := entry.get("rule"):
            place = (str(rule["family"]), str(rule["table"]), str(rule["chain"]))
            if place in inputs and any(verdict in step for step in rule["expr"] for verdict in _DROPS):
                yield place
