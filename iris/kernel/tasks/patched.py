"""Modules that gevent has replaced: without those of the system no node can run."""

from __future__ import annotations

import sys
from typing import Final

_NEEDED: Final = {"threading": "the threads", "select": "the module select"}


def check_not_patched(front: str) -> None:
    """Raise RuntimeError, with what to do, if gevent has replaced what a front needs of the system."""
    gevent = sys.modules.get("gevent.monkey")
    for module, what in _NEEDED.items():
        if gevent is not None and gevent.is_module_patched(module):
            raise RuntimeError(
                f"gevent has replaced {what} of this process, and {front} needs the system's own: call "
                "gevent.monkey.patch_all(thread=False, select=False), or have the node in a process of its own"
            )
