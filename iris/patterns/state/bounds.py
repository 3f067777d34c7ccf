"""Bounds of documents that a node names before it has one."""

from __future__ import annotations

from typing import Final

from iris.kernel.config import MIB

MAX_BYTES: Final = 16 * MIB
"""Limit on the size of a document, in bytes, where a program gives none."""
