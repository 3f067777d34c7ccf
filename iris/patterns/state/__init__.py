"""Shared state: documents that every member of a cluster has a copy of, and leases that one node has.

Promises of documents: members that have the same writes are equal, whatever the order, and whatever they missed; a read
or write waits for nobody; what others send is checked before it touches the document, and bounded.  Not: one order of
all writes.  Leases are never a matter of members among themselves: a bridge grants them, or nobody.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iris.patterns.state.api import *
    from iris.patterns.state.api import __all__ as __all__
else:
    from iris.kernel.tasks import late_names
    from iris.patterns.state.bounds import MAX_BYTES as MAX_BYTES

    __getattr__ = late_names(__name__)
