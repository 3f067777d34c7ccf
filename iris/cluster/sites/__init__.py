"""Sites shell: trio around iris.cluster.directory.  Links to nodes of other sites, their members, reports of losses.

It promises that a far member is asked like a near one, and that the wait for a link to it counts against the caller's
timeout.  It chooses no routes (iris.cluster.directory) and is no gateway (iris.federation).
"""

from iris.cluster.sites.member_reach import MemberReach
from iris.cluster.sites.network import SiteNetwork
from iris.cluster.sites.reach import Reach, open_with_all, open_with_one, reach_all, reach_one
from iris.cluster.sites.relay import Relay, SiteForwarder
from iris.cluster.sites.remote_members import RemoteMembers
from iris.cluster.sites.sites import Sites

__all__ = (
    "MemberReach", "Reach", "Relay", "RemoteMembers", "SiteForwarder", "SiteNetwork", "Sites", "open_with_all",
    "open_with_one", "reach_all", "reach_one",
)  # fmt: skip
