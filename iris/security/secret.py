"""Secret bytes: they show neither in a repr nor in formatted text, a log, or a traceback's locals.

Keys that a library holds are wrapped by ``KeyPair`` and ``SigningKey``; this is for those that are plain bytes: gate
secrets, session keys, private keys on their way to or from a file.  ``hex()`` and slices give ordinary values: writing
a secret down takes a decision.  Python cannot erase bytes; closing a session drops its keys and no more.
"""

from __future__ import annotations

from typing import ClassVar, final

from msgspec import Struct


@final
class Secret(bytes):
    """Secret bytes: their repr, str and format give only their number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<secret of {len(self)} bytes>"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return repr(self)

    def __reduce__(self) -> str:
        raise TypeError("a secret is not copied or pickled")

    def __reduce_ex__(self, protocol: object) -> str:
        return self.__reduce__()


def secrets_of(values: tuple[bytes, ...]) -> tuple[Secret, ...]:
    """Return ``values`` as secrets."""
    return tuple(map(Secret, values))


class Redacted(Struct, frozen=True, kw_only=True):
    """A value whose repr leaves out the fields in ``_unshown``: secrets, and bytes that tell people nothing."""

    _unshown: ClassVar[frozenset[str]]

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self._unshown]
        return f"{type(self).__qualname__}({', '.join(shown)})"
