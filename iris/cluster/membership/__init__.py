"""The trio shell around iris.cluster.swim: links to every node, roster, proofs, revocation.

Promises: a listed member has proved that it speaks for its cluster; watchers hear each change once, in order.
"""

from iris.cluster.membership.forwarder import Forwarder
from iris.cluster.membership.membership import Membership
from iris.cluster.membership.proofs import ProofVerifier, proof_of, serves_by_right
from iris.cluster.membership.revocation import LOCAL_LOOK, LOOK, RevocationExchange
from iris.cluster.membership.roster import Change, Member, NodeInfo, Watch

__all__ = (
    "LOCAL_LOOK", "LOOK", "Change", "Forwarder", "Member", "Membership", "NodeInfo", "ProofVerifier",
    "RevocationExchange", "Watch", "proof_of", "serves_by_right",
)  # fmt: skip
