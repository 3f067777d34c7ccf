"""Realm files: what they hold comes back, and what no realm can have said is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from iris.kernel.errors import ConfigError
from iris.security.authority.realm_root import create_realm
from iris.security.files.realm_files import load_realm, save_realm
from tests.support.realms import seeded_entropy

FINGERPRINT = "ab" * 16


def saved(path: Path, **changes: Any) -> Path:
    root = create_realm(seeded_entropy(1))
    save_realm(path, structs.replace(root, **changes), entropy=seeded_entropy(2))
    return path


def test_numbers_of_clusters_and_realms_come_back(tmp_path: Path) -> None:
    realm = load_realm(saved(tmp_path / "realm", generations={"shop": 3}, trusted_serials={FINGERPRINT: 7}))
    assert (realm.generations, realm.trusted_serials) == ({"shop": 3}, {FINGERPRINT: 7})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"generations": {"no name": 1}}, "a name of a cluster is none"),
        ({"revoked_clusters": {"": 1}}, "a name of a cluster is none"),
        ({"trusted_serials": {"shop": 1}}, "the fingerprint of a realm is none"),
    ],
)
def test_a_damaged_file_is_said_with_its_path(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = saved(tmp_path / "realm", **changes)
    with pytest.raises(ConfigError, match=f"realm {path}: the realm file is damaged: {reason}"):
        load_realm(path)
