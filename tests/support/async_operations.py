"""Names of the public async operations of a front."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_SPECIAL = ("__anext__", "__aenter__", "__aexit__")


def async_operations(front: ModuleType) -> Iterator[str]:
    """Yield the names of all public async functions and methods, and of those that return a block."""
    for name in front.__all__:
        shown = getattr(front, name)
        if not inspect.isclass(shown):
            if "AsyncIterator[" in _returned(shown):
                yield name
            continue
        for method in dir(shown):
            if not method.startswith("_") or method in _SPECIAL:
                function = getattr(shown, method)
                if inspect.iscoroutinefunction(inspect.unwrap(function)) or (
                    callable(function) and _returned(function).startswith(("Abstract", "AsyncIterator["))
                ):
                    yield f"{name}.{method}"


def _returned(function: Any) -> str:
    return str(getattr(function, "__annotations__", {}).get("return", ""))
