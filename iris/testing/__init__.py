"""Clusters in one process: nodes on a network in memory, on a virtual clock, with faults from a seed.

::

    async def test_orders(autojump_clock):
        async with iris.testing.open_network(seed=1) as network:
            async with network.open_node("orders") as member, network.open_node("shop") as shop:
                async with member.join("orders", service):
                    await shop.wait_for("orders")
                    assert await shop.request("orders", b"status") == b"open"

That is for trio; ``iris.aio.testing`` has the same names for asyncio.  Everything but the network is the real thing:
handshakes, sealed sessions, membership, patterns.  ``simulate`` runs a test under many seeds, each with its own order
of tasks, latencies and faults; the same seed gives the same run.

As with ``iris``, what is behind the names is loaded when the first of them is read: the plugin of pytest is in this
package, and test runs that use none of it do not pay for it.  So no module in here may be called as one of the names.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from iris.testing.api import *
    from iris.testing.api import __all__ as __all__
else:

    def __getattr__(name: str) -> object:
        """Load the public names."""
        from importlib import import_module

        from iris.kernel.loading import loading

        if name == "__all__" or not name.startswith("_"):
            with loading():
                api = import_module("iris.testing.api")
            globals().update({public: getattr(api, public) for public in ("__all__", *api.__all__)})
        if name not in globals():
            raise AttributeError(f"module 'iris.testing' has no attribute {name!r}")
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
