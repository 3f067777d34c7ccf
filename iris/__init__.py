"""Iris: programs address services by name, not hosts.

::

    async with iris.open_node() as node:
        print(await node.request("databases", b"hello"))

That is for trio.  ``import iris.aio`` has the same for asyncio, ``import iris.sync`` for programs without an event
loop, and ``import iris.spark_bridge`` is for Spark.  On the command line ``iris bridge`` stores events, jobs and leases
on disk, and ``iris doctor`` says why nodes do not find each other.

``import iris`` loads nothing else.  What is behind its names is loaded when the first of them is read, so that the
command decides before that what Ctrl-C does while it loads; documents, leases, sagas and what reads a bridge's log,
which few nodes have, when one of theirs is.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from iris import logs as logs, metrics as metrics
    from iris.api import *
    from iris.api import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        """Load the public names, or ``iris.metrics`` and ``iris.logs``, which few programs use."""
        from importlib import import_module

        from iris.kernel.loading import loading

        if name in ("logs", "metrics"):
            return import_module(f"iris.{name}")
        if name == "__all__" or not name.startswith("_"):
            with loading():
                api = import_module("iris.api")
            globals().update({public: vars(api)[public] for public in ("__all__", *api.__all__) if public in vars(api)})
            if name in api.__all__:
                globals()[name] = getattr(api, name)
        if name not in globals():
            mend = f": import iris.{name}" if name in ("aio", "spark_bridge", "sync", "testing") else ""
            raise AttributeError(f"module 'iris' has no attribute {name!r}{mend}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__"), "logs", "metrics"})
