"""A process whose threads gevent has replaced."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import iris.sync


def test_where_gevent_has_replaced_the_threads_opening_a_node_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("gevent.monkey")
    patched = {"threading"}

    def is_module_patched(name: str) -> bool:
        return name in patched

    monkeypatch.setattr(module, "is_module_patched", is_module_patched, raising=False)
    monkeypatch.setitem(sys.modules, "gevent.monkey", module)
    with pytest.raises(RuntimeError, match="gevent has replaced the threads"), iris.sync.open_node("a"):
        pass
    patched.clear()
    with iris.sync.open_node("a") as node:
        assert node.clusters() is not None
