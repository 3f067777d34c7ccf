"""File descriptors: whether as many may be open as a link to each node takes."""

from __future__ import annotations

from typing import Final

from iris.cli.operators.doctor.findings import Diagnosis, ok, problem, warning
from iris.node.descriptors import DESCRIPTORS_PER_LINK

_OTHER: Final = 64
"""Descriptors of a node without links, of its program, and of strangers that connect."""

_AMPLE: Final = 2
"""A limit of so many times what is needed now leaves time to notice growth."""

_ADVISED: Final = 65_536


def examine_descriptors(soft: int, hard: int, nodes: int) -> Diagnosis:
    """Compare the limit on open files with the nodes of the realm.

    Args:
        soft: the limit in force.
        hard: the limit that it can be raised to without being root.
        nodes: number of nodes of the realm, besides this one.
    """
    needed = _OTHER + DESCRIPTORS_PER_LINK * nodes
    cause = f"{soft} files may be open; links to other nodes ({nodes}) and the rest of a program take about {needed}"
    raised = max(_ADVISED, 4 * needed)
    remedy = f"ulimit -n {raised}" if raised <= hard else f"as root: ulimit -n {raised}"
    if soft < needed:
        return problem("files-few", cause, remedy)
    if soft < _AMPLE * needed:
        return warning("files-few", cause, remedy)
    return ok("files-ok", cause)
