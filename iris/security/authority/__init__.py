"""Authority: what the owner of a realm does.  Create it, issue and rotate credentials, revoke, trust other realms.

It promises that the key of the realm's root is needed for nothing else, and can stay offline.  Its functions take
values and return new ones; they read and write no files (iris.security.files) and reach no running node.
"""

from iris.security.authority.issuing import (
    DAY, CredentialFault, CredentialSummary, FaultKind, check_credential, summarize,
)  # fmt: skip
from iris.security.authority.realm_root import RealmRoot
from iris.security.authority.trust import distrust_realm, issue_realm_bundle, trust_realm

__all__ = (
    "DAY", "CredentialFault", "CredentialSummary", "FaultKind", "RealmRoot", "check_credential", "distrust_realm",
    "issue_realm_bundle", "summarize", "trust_realm",
)  # fmt: skip
