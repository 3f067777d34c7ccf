"""Membership shell: trio around iris.cluster.swim.  Links, roster, proofs, revocation.

It promises that a listed member has proved that it speaks for its cluster, and that watchers receive each change once,
in order.  It does not decide who is alive (iris.cluster.swim) and does not handshake (iris.cluster.mesh).
"""

from iris.cluster.membership.admission import NodeAdmission
from iris.cluster.membership.forwarder import Forwarder, RelayedRoutes
from iris.cluster.membership.idle_links import IdleLinks
from iris.cluster.membership.link_states import LinkStates
from iris.cluster.membership.lookups import Lookups
from iris.cluster.membership.membership import Membership, MembershipPorts
from iris.cluster.membership.partners import PARTNERS
from iris.cluster.membership.proofs import ProofVerifier, proof_of, serves_by_right
from iris.cluster.membership.revocation import LOCAL_LOOK, LOOK, RevocationExchange
from iris.cluster.membership.roster import Change, Departure, Member, NodeInfo, Watch

__all__ = (
    "LOCAL_LOOK", "LOOK", "PARTNERS", "Change", "Departure", "Forwarder", "IdleLinks", "LinkStates", "Lookups",
    "Member", "Membership", "MembershipPorts", "NodeAdmission", "NodeInfo", "ProofVerifier", "RelayedRoutes",
    "RevocationExchange", "Watch", "proof_of", "serves_by_right",
)  # fmt: skip
