"""``iris keys``: what the owner of a realm does, on real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iris.cli.main import FAILED, MISUSED, run_command
from iris.cli.terminal import VARIABLE
from iris.security.files.credential_file import load_credential
from iris.security.files.realm_files import load_realm

Captured = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("realm")
def test_files_are_private_to_their_owner() -> None:
    modes = {name: Path(name).stat().st_mode & 0o777 for name in ("realm.key", "store.iris")}
    assert modes == {"realm.key": 0o600, "store.iris": 0o600}


@pytest.mark.usefixtures("realm")
def test_a_credential_shows_its_rights_and_no_secret(capsys: Captured) -> None:
    rights = ["--serve", "cache", "--publish", "rows.>", "--seeds", "tcp://192.0.2.1:7000", "--gateway", "--days", "10"]
    assert run_command(["keys", "cluster", "realm.key", "logs", "--out", "logs.iris", *rights]) == 0
    capsys.readouterr()
    assert run_command(["keys", "show", "logs.iris", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["cluster"], shown["generation"], shown["sealed"]) == ("logs", 1, False)
    assert shown["rights"] == {"serves": ["cache"], "publishes": ["rows.>"], "subscribes": None, "gateway": True}
    assert shown["seeds"] == ["tcp://192.0.2.1:7000"]
    assert 9.9 < (shown["expires"] - shown["not_before"]) / 86400 < 10.1
    assert "secret" not in "".join(shown).replace("gate_secrets", "")
    assert run_command(["keys", "show", "logs.iris"]) == 0
    assert "publishes    rows.>" in capsys.readouterr().out


@pytest.mark.usefixtures("realm")
def test_a_credential_for_no_topic_permits_none(capsys: Captured) -> None:
    issue = ["keys", "cluster", "realm.key", "analysts", "--out", "analysts.iris"]
    assert run_command([*issue, "--no-publish", "--no-subscribe"]) == 0
    rights = load_credential(Path("analysts.iris")).certificate.rights
    assert (rights.publishes, rights.subscribes) == ((), ())
    capsys.readouterr()
    assert run_command(["keys", "show", "analysts.iris"]) == 0
    shown = capsys.readouterr().out
    assert "publishes    no topic" in shown
    assert "subscribes   no topic" in shown


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--publish", "nothing"], "--publish nothing would permit the topic 'nothing': for no topic at all give"),
        (["--subscribe", "none"], "for no topic at all give --no-subscribe"),
        (["--publish", ""], "for no topic at all give --no-publish"),
        (["--no-publish", "--publish", "a"], "--no-publish and --publish contradict each other"),
        (["--no-subscribe", "--subscribe", "a"], "--no-subscribe and --subscribe contradict each other"),
    ],
)
def test_what_reads_like_no_topic_is_not_taken_for_the_topic_of_that_name(
    given: list[str], message: str, capsys: Captured
) -> None:
    assert run_command(["keys", "cluster", "realm.key", "analysts", "--out", "analysts.iris", *given]) == MISUSED
    assert message in capsys.readouterr().err
    assert not Path("analysts.iris").exists()


@pytest.mark.usefixtures("realm")
def test_nothing_is_written_over(capsys: Captured) -> None:
    before = Path("realm.key").read_bytes()
    assert run_command(["keys", "realm", "realm.key"]) == MISUSED
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "store.iris"]) == MISUSED
    assert "store.iris exists: nothing was changed" in capsys.readouterr().err
    assert Path("realm.key").read_bytes() == before


@pytest.mark.usefixtures("realm")
def test_a_sealed_credential_is_renewed_with_its_node_kept(capsys: Captured) -> None:
    assert run_command(["keys", "seal", "store.iris", "--out", "one.iris"]) == 0
    assert run_command(["keys", "seal", "store.iris", "--out", "two.iris", "--previous", "one.iris"]) == 0
    assert run_command(["keys", "seal", "store.iris", "--out", "other.iris"]) == 0
    capsys.readouterr()
    nodes: list[str] = []
    for name in ("one", "two", "other"):
        assert run_command(["keys", "show", f"{name}.iris", "--json"]) == 0
        nodes.append(json.loads(capsys.readouterr().out)["node"])
    assert nodes[0] == nodes[1] != nodes[2]


@pytest.mark.usefixtures("realm")
def test_the_gate_secret_is_rotated_in_three_steps(capsys: Captured) -> None:
    secrets: list[int] = []
    for step in ("add", "use", "drop"):
        assert run_command(["keys", "rotate", "realm.key", step]) == 0
        assert run_command(["keys", "refresh", "realm.key", "store.iris"]) == 0
        capsys.readouterr()
        assert run_command(["keys", "show", "store.iris", "--json"]) == 0
        secrets.append(json.loads(capsys.readouterr().out)["gate_secrets"])
    assert secrets == [2, 2, 1]
    assert run_command(["keys", "rotate", "realm.key", "drop"]) == MISUSED
    assert capsys.readouterr().err.startswith("iris: no gate secret has been added")


@pytest.mark.usefixtures("realm")
def test_check_tells_good_credentials_from_revoked_ones(capsys: Captured) -> None:
    assert run_command(["keys", "check", "store.iris"]) == 0
    assert run_command(["keys", "revoke", "realm.key", "--cluster", "store", "--out", "revoked"]) == 0
    capsys.readouterr()
    assert run_command(["keys", "check", "store.iris", "--revocations", "revoked"]) == FAILED
    assert capsys.readouterr().out == "store.iris: generation 1 of cluster 'store' is revoked\n"
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "next.iris"]) == 0
    assert run_command(["keys", "check", "next.iris", "--revocations", "revoked"]) == 0


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize(
    "whom", [[], ["--cluster", "a", "--node", "b"], ["--node", "a" * 32, "--below", "1"], ["--cluster", "unknown"]]
)
def test_a_revocation_that_makes_no_sense_changes_nothing(whom: list[str], capsys: Captured) -> None:
    before = Path("realm.key").read_bytes()
    assert run_command(["keys", "revoke", "realm.key", *whom, "--out", "revoked"]) == MISUSED
    assert capsys.readouterr().err.count("\n") == 1
    assert Path("realm.key").read_bytes() == before
    assert not Path("revoked").exists()


@pytest.mark.usefixtures("realm")
def test_a_credential_that_others_can_read_is_refused_and_the_remedy_named(capsys: Captured) -> None:
    Path("store.iris").chmod(0o644)
    assert run_command(["keys", "show", "store.iris"]) == MISUSED
    assert "chmod 600" in capsys.readouterr().err


def test_a_realm_that_is_wrapped_needs_its_passphrase_and_stays_wrapped(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "correct horse")
    assert run_command(["keys", "realm", "wrapped.key"]) == 0
    assert run_command(["keys", "cluster", "wrapped.key", "a", "--out", "a.iris"]) == 0
    monkeypatch.delenv(VARIABLE)
    capsys.readouterr()
    assert run_command(["keys", "cluster", "wrapped.key", "b", "--out", "b.iris"]) == MISUSED
    assert "passphrase" in capsys.readouterr().err
    assert run_command(["keys", "show", "a.iris"]) == 0, "a credential is not wrapped with the passphrase of its realm"


@pytest.mark.usefixtures("realm")
def test_a_rotation_without_its_second_step_is_not_finished_and_says_what_is_missing(capsys: Captured) -> None:
    before = load_realm(Path("realm.key")).gate_secrets
    assert run_command(["keys", "rotate", "realm.key", "add"]) == 0
    assert "the next step: iris keys rotate realm.key use" in capsys.readouterr().err
    assert run_command(["keys", "rotate", "realm.key", "drop"]) == MISUSED
    assert "the new gate secret is not used yet, and the old one would stay" in capsys.readouterr().err
    assert len(load_realm(Path("realm.key")).gate_secrets) == 2
    assert run_command(["keys", "rotate", "realm.key", "use"]) == 0
    assert "the next step: iris keys rotate realm.key drop" in capsys.readouterr().err
    assert run_command(["keys", "rotate", "realm.key", "use"]) == MISUSED
    assert run_command(["keys", "rotate", "realm.key", "drop"]) == 0
    assert "that is the last step" in capsys.readouterr().err
    assert set(before).isdisjoint(load_realm(Path("realm.key")).gate_secrets)


@pytest.mark.usefixtures("realm")
def test_a_passphrase_that_a_file_does_not_need_does_not_wrap_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "of another file")
    assert run_command(["keys", "rotate", "realm.key", "add"]) == 0
    monkeypatch.delenv(VARIABLE)
    assert run_command(["keys", "rotate", "realm.key", "use"]) == 0
