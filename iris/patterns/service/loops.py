"""Wrong event loops: what asyncio raises where trio runs, or the other way round, and what mends it.

Neither says so in a class of its own, so they are known by their texts, which tests compare with those that are raised.
"""

from __future__ import annotations

from typing import Final

_OF_ASYNCIO: Final = (
    "no running event loop",
    "trio.run received unrecognized yield message",
    "'NoneType' object has no attribute 'create_future'",
)
_OF_TRIO: Final = (
    "must be called from async context",
    "Task got bad yield",
    "'RunContext' object has no attribute",
)

_FOR_ASYNCIO: Final = (
    "it uses asyncio, and no asyncio event loop runs it: make the service an iris.aio.Service, which 'iris run' and "
    "nodes of iris.aio serve with asyncio"
)
_FOR_TRIO: Final = (
    "it uses trio, and trio does not run it: make the service an iris.Service, which 'iris run' and nodes of "
    "iris.open_node serve with trio"
)


def mend_of(error: BaseException) -> str | None:
    """Return what mends an error that is the one of a wrong event loop; None for any other."""
    if not isinstance(error, RuntimeError | TypeError | AttributeError):
        return None
    text = str(error)
    if text.startswith(_OF_ASYNCIO):
        return _FOR_ASYNCIO
    return _FOR_TRIO if text.startswith(_OF_TRIO) else None


def noted_mend(error: BaseException) -> str | None:
    """Return what ``mend_of`` does, and note it at the error, for the log."""
    mend = mend_of(error)
    if mend is not None and mend not in getattr(error, "__notes__", ()):
        error.add_note(mend)
    return mend
