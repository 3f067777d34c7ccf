"""Late names: a room whose modules are loaded when the first of its names is read, for what few nodes do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

from iris.kernel.loading import loading
from iris.kernel.tasks.interrupts import protect_package


def late_names(room: str) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a room whose names are those of its module ``api``.

    Nodes may be open by then: what is loaded is protected from Ctrl-C at once, and not with the next nursery.
    """

    def read(name: str) -> object:
        names = vars(sys.modules[room])
        if name == "__all__" or not name.startswith("__"):
            with loading():
                api = import_module(f"{room}.api")
            protect_package()
            names.update({public: getattr(api, public) for public in ("__all__", *api.__all__)})
        if name not in names:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return names[name]

    return read
