"""A credential file that is replaced while a node runs is taken into use, without a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

import iris
from iris.node.open import open_parts
from iris.security.authority.issuing import add_gate_secret, issue_cluster, refresh_credential
from iris.security.authority.realm_root import create_realm
from iris.security.files.credential_file import save_credential


async def test_a_second_gate_secret_reaches_a_running_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("iris.node.open._LOOK", 0.02)
    now = iris.Environment().wall_clock()
    realm, credential = issue_cluster(create_realm(os.urandom), "shop", entropy=os.urandom, wall_now=now)
    file = tmp_path / "shop.json"
    save_credential(file, credential)
    async with open_parts(credential=file) as (node, node_parts):
        before = node_parts.mesh.identity
        assert len(before.gate_secrets) == 1
        file.write_text("not a credential")
        with trio.fail_after(60):
            while "going on with the credential that was read before" not in caplog.text:  # noqa: ASYNC110 -- by the clock
                await trio.sleep(0.01)
        fresh = refresh_credential(add_gate_secret(realm, os.urandom), credential, wall_now=now)
        save_credential(file, fresh, replace=True)
        with trio.fail_after(60):
            while node_parts.mesh.identity is before:  # noqa: ASYNC110 -- by the clock
                await trio.sleep(0.01)
        assert len(node_parts.mesh.identity.gate_secrets) == 2
        assert node_parts.mesh.identity.node_id == before.node_id == node.id
