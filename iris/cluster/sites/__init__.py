"""The trio shell around iris.cluster.directory: links to nodes of other sites, their members, reports of losses.

Promises: a far member is asked like a near one; the wait for a link to it counts against the caller's timeout.
"""

from iris.cluster.sites.reach import open_with_all, open_with_one, reach_one
from iris.cluster.sites.sites import Sites

__all__ = (
    "Sites", "open_with_all", "open_with_one", "reach_one",
)  # fmt: skip
