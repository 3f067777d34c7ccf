"""Identity: certificates, delegations, credentials, permissions, revocation lists, realm bundles.

It promises that every value is verified where it is parsed, that signatures are checked over the raw bytes that
arrived, and that a parsed value is immutable.  It reads no files (iris.security.files) and issues nothing
(iris.security.authority).
"""

from iris.security.identity.certificate import (
    CLOCK_TOLERANCE, MAX_SIGNED, ClusterCertificate, NodeDelegation, OutOfDate, check_validity, issue_certificate,
    read_certificate_untrusted, read_delegation_untrusted,
)  # fmt: skip
from iris.security.identity.credential import (
    GATE_SECRET_SIZE, MAX_GATE_SECRETS, Credential, SealedKeys, seal_credential,
)  # fmt: skip
from iris.security.identity.identity import (
    NodeIdentity, PeerIdentity, read_peer_untrusted, realm_fingerprint, verify_peer_untrusted,
)  # fmt: skip
from iris.security.identity.permissions import MAX_PATTERNS, Patterns, Rights, check_patterns, covers, overlap
from iris.security.identity.realm_bundle import (
    EVERYTHING, MAX_BUNDLE, MAX_REALMS, PAIR_SECRET_SIZE, OtherRealm, RealmBundle, TrustedRealm, encode_other_realm,
    issue_bundle, join_trusted, pair_secret, read_bundle_untrusted,
)  # fmt: skip
from iris.security.identity.revocation import (
    MAX_LIST, WHAT, RevocationList, NewestRevocations, issue_revocations, read_revocations_untrusted,
)  # fmt: skip
from iris.security.identity.signing import SigningKey

__all__ = (
    "CLOCK_TOLERANCE", "EVERYTHING", "GATE_SECRET_SIZE", "MAX_BUNDLE", "MAX_GATE_SECRETS", "MAX_LIST", "MAX_PATTERNS",
    "MAX_REALMS", "MAX_SIGNED", "PAIR_SECRET_SIZE", "WHAT", "ClusterCertificate", "Credential", "OtherRealm",
    "NodeDelegation", "NodeIdentity", "OutOfDate", "Patterns", "PeerIdentity", "RealmBundle", "RevocationList",
    "NewestRevocations", "Rights", "SealedKeys", "SigningKey", "TrustedRealm", "check_patterns", "check_validity",
    "covers", "encode_other_realm", "issue_bundle", "issue_certificate", "issue_revocations", "join_trusted",
    "overlap", "pair_secret",
    "read_bundle_untrusted", "read_certificate_untrusted", "read_delegation_untrusted", "read_peer_untrusted",
    "read_revocations_untrusted", "realm_fingerprint", "seal_credential", "verify_peer_untrusted",
)  # fmt: skip
