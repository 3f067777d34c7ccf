"""A peer that has proved its name is linked only if its realm is still trusted."""

from __future__ import annotations

import pytest
from msgspec import structs

from iris.cluster.mesh.peer import check_identity
from iris.kernel.errors import AuthenticationError
from iris.security.identity.realm_bundle import OtherRealm, issue_bundle
from tests.support.realms import DAY, WALL, TestRealm


def test_a_realm_that_is_trusted_no_more_is_refused_though_its_handshake_began_before() -> None:
    ours, theirs = TestRealm(1), TestRealm(2)
    own, peer = ours.identity("shop"), ours.identity("store").public()
    bundle = issue_bundle(theirs.root, name="x", exports=(">",), serial=1, not_before=WALL - DAY, not_after=WALL + DAY)
    check_identity(peer, None, own)
    with pytest.raises(AuthenticationError, match="'acme' is not trusted as it was"):
        check_identity(
            structs.replace(peer, other_realm=OtherRealm(alias="acme", bundle=bundle, exports=(">",))), None, own
        )
