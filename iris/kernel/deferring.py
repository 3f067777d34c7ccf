"""Leave out what a library imports at its start and we never use.

pynng imports asyncio for those who await on it there: 29 modules, 20 of the 380 ms that a process needs until ``import
iris`` is done.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType


class _Deferred(ModuleType):
    """Stands for a module in the names of those who imported it, and imports it when something of it is wanted."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked by the import system, which takes "no" for an answer
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:  # wanted at once after all
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def deferred(name: str) -> Generator[None]:
    """Have ``import name`` within the block load nothing, unless it is loaded already.

    Afterwards whoever imports it gets the real module; those in the block get it with the first use of an attribute.
    """
    if name in sys.modules:
        yield
        return
    stand_in = sys.modules[name] = _Deferred(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
