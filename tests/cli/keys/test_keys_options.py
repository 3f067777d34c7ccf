"""``iris keys``, option by option: passphrases, validity, what is refused, and what is left as it was."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import structs

from iris.cli.main import FAILED, MISUSED, run_command
from iris.cli.terminal import VARIABLE
from iris.kernel.errors import ConfigError
from iris.security.authority.issuing import check_credential, create_realm, issue_cluster
from iris.security.files.credential_file import load_credential, save_credential
from tests.support.desk import complaint

Captured = pytest.CaptureFixture[str]


def shown(file: str, capsys: Captured) -> dict[str, Any]:
    """Return what ``iris keys show --json`` says of a credential."""
    capsys.readouterr()
    assert run_command(["keys", "show", file, "--json"]) == 0
    fields: dict[str, Any] = json.loads(capsys.readouterr().out)
    return fields


def contents() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path().iterdir()}


# -- passphrases --------------------------------------------------------------------------------------------


class Typist:
    """Somebody who types these passphrases, one at each prompt."""

    def __init__(self, *passphrases: str) -> None:
        self.prompts: list[dict[str, Any]] = []
        self._passphrases = list(passphrases)

    def __call__(self, text: str, **options: Any) -> str:
        self.prompts.append({"text": text, **options})
        if not self._passphrases:
            raise click.Abort
        return self._passphrases.pop(0)


def typist(monkeypatch: pytest.MonkeyPatch, *passphrases: str) -> Typist:
    person = Typist(*passphrases)
    monkeypatch.setattr(click, "prompt", person)
    return person


def test_a_passphrase_is_asked_for_unseen_and_twice_when_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    person = typist(monkeypatch, "correct horse", "correct horse")
    assert run_command(["keys", "realm", "realm.key", "--passphrase"]) == 0
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "store.iris", "--passphrase"]) == 0
    assert [(one["hide_input"], one["confirmation_prompt"]) for one in person.prompts] == [(True, True), (True, False)]
    assert b"correct horse" not in b"".join(contents().values())


def test_the_wrong_passphrase_is_one_line_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    typist(monkeypatch, "correct horse", "battery staple")
    assert run_command(["keys", "realm", "realm.key", "--passphrase"]) == 0
    before = contents()
    capsys.readouterr()
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "store.iris", "--passphrase"]) == MISUSED
    assert "passphrase" in complaint(capsys)
    assert contents() == before


def test_who_does_not_want_to_type_it_after_all_gets_the_status_of_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    typist(monkeypatch)
    assert run_command(["keys", "realm", "realm.key", "--passphrase"]) == 130
    assert contents() == {}
    assert capsys.readouterr() == ("", "")


def test_the_environment_answers_for_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    person = typist(monkeypatch)
    monkeypatch.setenv(VARIABLE, "correct horse")
    assert run_command(["keys", "realm", "realm.key", "--passphrase"]) == 0
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "store.iris", "--passphrase"]) == 0
    assert person.prompts == []


@pytest.mark.parametrize("wrapped_realm", [True, False])
def test_a_credential_made_with_a_passphrase_opens_with_it_only(
    monkeypatch: pytest.MonkeyPatch, wrapped_realm: bool, capsys: Captured
) -> None:
    person = typist(monkeypatch, *["correct horse"] * 3)
    assert run_command(["keys", "realm", "realm.key", *(["--passphrase"] if wrapped_realm else [])]) == 0
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "store.iris", "--passphrase"]) == 0
    assert run_command(["keys", "seal", "store.iris", "--out", "sealed.iris", "--passphrase"]) == 0
    confirmed = [one["confirmation_prompt"] for one in person.prompts]
    assert confirmed == ([True, False, False] if wrapped_realm else [True, False]), "what is new is typed twice"
    for file in "store.iris", "sealed.iris":
        assert set(json.loads(Path(file).read_text())) & {"cluster_key", "signing_key", "gate_secrets"} == set()
        with pytest.raises(ConfigError, match="passphrase"):
            load_credential(file)
        assert run_command(["keys", "check", file]) == FAILED
    capsys.readouterr()
    monkeypatch.setenv(VARIABLE, "correct horse")
    for file in "store.iris", "sealed.iris":
        assert run_command(["keys", "check", file]) == 0
        assert shown(file, capsys)["cluster"] == "store"


def test_a_plain_credential_is_sealed_under_a_passphrase_that_is_typed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    person = typist(monkeypatch, "correct horse")
    assert run_command(["keys", "realm", "realm.key"]) == 0
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "store.iris"]) == 0
    assert run_command(["keys", "seal", "store.iris", "--out", "sealed.iris", "--passphrase"]) == 0
    assert [one["confirmation_prompt"] for one in person.prompts] == [True]
    assert load_credential("store.iris").name == "store"
    assert load_credential("sealed.iris", passphrase="correct horse").name == "store"


# -- validity and rights ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize(("arguments", "days"), [((), 365.0), (("--days", "2"), 2.0), (("--days", "0.5"), 0.5)])
def test_a_credential_is_valid_for_so_many_days(arguments: tuple[str, ...], days: float, capsys: Captured) -> None:
    assert run_command(["keys", "cluster", "realm.key", "logs", "--out", "logs.iris", *arguments]) == 0
    fields = shown("logs.iris", capsys)
    assert (fields["expires"] - fields["not_before"]) / 86400 == pytest.approx(days, abs=0.1)


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize(("arguments", "days"), [((), 30.0), (("--days", "7"), 7.0)])
def test_a_sealed_credential_is_valid_for_so_many_days_and_says_what_it_is(
    arguments: tuple[str, ...], days: float, capsys: Captured
) -> None:
    assert run_command(["keys", "seal", "store.iris", "--out", "sealed.iris", *arguments]) == 0
    fields = shown("sealed.iris", capsys)
    assert fields["sealed"] is True
    now = datetime.datetime.now(datetime.UTC).timestamp()
    assert (fields["expires"] - now) / 86400 == pytest.approx(days, abs=0.1)
    assert run_command(["keys", "show", "sealed.iris"]) == 0
    said = capsys.readouterr().out
    assert "kind         sealed: for one machine" in said
    assert f"node         {fields['node']}..." in said


@pytest.mark.usefixtures("realm")
def test_who_makes_a_credential_is_told_until_when_it_is_valid(capsys: Captured) -> None:
    assert run_command(["keys", "cluster", "realm.key", "logs", "--out", "logs.iris", "--days", "20"]) == 0
    in_days = {days: datetime.datetime.now(datetime.UTC) + datetime.timedelta(days) for days in (10, 20)}
    assert f"generation 1, valid until {in_days[20]:%Y-%m-%d}" in capsys.readouterr().err
    assert run_command(["keys", "seal", "logs.iris", "--out", "brief.iris", "--days", "10"]) == 0
    said = capsys.readouterr().err
    assert f"of cluster logs, valid until {in_days[10]:%Y-%m-%d}" in said
    assert said.count("\n") == 1
    assert run_command(["keys", "seal", "logs.iris", "--out", "long.iris", "--days", "40"]) == 0
    said = capsys.readouterr().err
    assert f"of cluster logs, valid until {in_days[20]:%Y-%m-%d}" in said
    assert "sooner than was asked for: logs.iris itself is valid no longer" in said


@pytest.mark.usefixtures("realm")
def test_a_credential_for_a_hundred_years_and_one_for_longer_than_there_are_dates_can_be_shown(
    capsys: Captured,
) -> None:
    assert run_command(["keys", "cluster", "realm.key", "logs", "--out", "logs.iris", "--days", "36525"]) == 0
    year = datetime.datetime.now(datetime.UTC).year
    assert run_command(["keys", "show", "logs.iris"]) == 0
    shown = capsys.readouterr().out
    assert f"valid until  {year + 100}-" in shown or f"valid until  {year + 99}-" in shown
    realm, eternal = issue_cluster(
        create_realm(os.urandom), "rocks", entropy=os.urandom, wall_now=1_700_000_000, lifetime=1e12
    )
    assert realm.generations == {"rocks": 1}
    save_credential("rocks.iris", eternal)
    assert run_command(["keys", "show", "rocks.iris"]) == 0
    assert "valid until  after the year 9999" in capsys.readouterr().out
    assert run_command(["keys", "check", "rocks.iris"]) == 0


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize(
    ("seconds", "said"),
    [(10, "expires in 10 seconds"), (600, "expires in 10.0 minutes"), (18_000, "expires in 5.0 hours")],
)
def test_check_says_how_long_in_a_unit_that_fits(seconds: int, said: str) -> None:
    now = 1_800_000_000
    _, credential = issue_cluster(create_realm(os.urandom), "brief", entropy=os.urandom, wall_now=now, lifetime=seconds)
    (fault,) = check_credential(credential, wall_now=now)
    assert fault.text == f"{said}: refresh or seal it again"


@pytest.mark.usefixtures("realm")
def test_a_realm_that_cannot_be_saved_hands_out_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def fail(*_: object, **__: object) -> None:
        assert not Path("logs.iris").exists(), "what the realm does not know of must not be there"
        raise ConfigError("the disk is full")

    monkeypatch.setattr("iris.cli.keys.keys.save_realm", fail)
    for verb in (["cluster", "realm.key", "logs"], ["revoke", "realm.key", "--cluster", "store"]):
        assert run_command(["keys", *verb, "--out", "logs.iris"]) == MISUSED
        assert "the disk is full" in capsys.readouterr().err
    assert {path.name for path in Path().iterdir()} == {"realm.key", "store.iris"}


@pytest.mark.usefixtures("realm")
def test_people_read_what_a_credential_may_do_and_until_when(capsys: Captured) -> None:
    assert run_command(["keys", "show", "store.iris"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "valid" not in line)
    assert lines["cluster"] == lines["serves"] == "store"
    assert lines["publishes"] == lines["subscribes"] == "any topic"
    assert (lines["gateway"], lines["seeds"]) == ("no", "none")
    assert lines["kind"] == "portable: holds the key of the cluster"


@pytest.mark.usefixtures("realm")
def test_a_second_credential_of_a_cluster_is_its_next_generation(capsys: Captured) -> None:
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "next.iris"]) == 0
    assert "generation 2" in capsys.readouterr().err
    assert [shown(file, capsys)["generation"] for file in ("store.iris", "next.iris")] == [1, 2]


# -- check --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("realm")
def test_check_tells_of_every_file_what_is_wrong_and_of_good_ones_nothing(capsys: Captured) -> None:
    assert run_command(["keys", "cluster", "realm.key", "logs", "--out", "logs.iris", "--days", "3"]) == 0
    Path("broken.iris").write_bytes(b"nothing")
    Path("broken.iris").chmod(0o600)
    capsys.readouterr()
    assert run_command(["keys", "check", "store.iris", "logs.iris", "broken.iris", "absent.iris"]) == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["logs.iris", "broken.iris", "absent.iris"]


@pytest.mark.usefixtures("realm")
def test_check_tells_which_seeds_of_an_old_credential_are_no_addresses(capsys: Captured) -> None:
    file = Path("store.iris")
    seeds = ("nonsense", "tcp://192.0.2.1:7000", "tcp://host")
    save_credential(file, structs.replace(load_credential(file), seeds=seeds), replace=True)
    assert run_command(["keys", "check", "store.iris"]) == FAILED
    one, other = capsys.readouterr().out.splitlines()
    assert one.startswith("store.iris: seed 'nonsense' is not an address")
    assert other.startswith("store.iris: seed 'tcp://host' has no valid port")


@pytest.mark.usefixtures("realm")
def test_a_revocation_list_that_is_not_there_or_not_one_is_refused(capsys: Captured) -> None:
    assert run_command(["keys", "check", "store.iris", "--revocations", "absent"]) == MISUSED
    assert "there is no revocation list absent" in complaint(capsys)
    Path("list").write_bytes(b"nothing")
    assert run_command(["keys", "check", "store.iris", "--revocations", "list"]) == MISUSED
    assert "list" in complaint(capsys)


# -- revoke and refresh -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("realm")
def test_only_generations_below_the_one_named_are_revoked(capsys: Captured) -> None:
    assert run_command(["keys", "cluster", "realm.key", "store", "--out", "next.iris"]) == 0
    assert run_command(["keys", "revoke", "realm.key", "--cluster", "store", "--below", "2", "--out", "list"]) == 0
    assert "list is revocation list 1: copy it to" in capsys.readouterr().err
    assert run_command(["keys", "check", "store.iris", "--revocations", "list"]) == FAILED
    assert run_command(["keys", "check", "next.iris", "--revocations", "list"]) == 0


@pytest.mark.usefixtures("realm")
def test_one_sealed_credential_is_revoked_and_the_cluster_goes_on(capsys: Captured) -> None:
    for name in ("one", "two"):
        assert run_command(["keys", "seal", "store.iris", "--out", f"{name}.iris"]) == 0
    node = shown("one.iris", capsys)["node"]
    assert run_command(["keys", "revoke", "realm.key", "--node", node, "--out", "list"]) == 0
    results = [
        run_command(["keys", "check", file, "--revocations", "list"]) for file in ("one.iris", "two.iris", "store.iris")
    ]
    assert results == [FAILED, 0, 0]


@pytest.mark.usefixtures("realm")
def test_each_list_holds_what_the_ones_before_it_held(capsys: Captured) -> None:
    assert run_command(["keys", "cluster", "realm.key", "logs", "--out", "logs.iris"]) == 0
    for number, cluster in ((1, "store"), (2, "logs")):
        assert run_command(["keys", "revoke", "realm.key", "--cluster", cluster, "--out", f"list-{number}"]) == 0
        assert f"list-{number} is revocation list {number}" in capsys.readouterr().err
    for file in ("store.iris", "logs.iris"):
        assert run_command(["keys", "check", file, "--revocations", "list-2"]) == FAILED


@pytest.mark.usefixtures("realm")
def test_refreshing_takes_only_credentials_of_its_realm(capsys: Captured) -> None:
    assert run_command(["keys", "realm", "other.key"]) == 0
    capsys.readouterr()
    before = contents()
    assert run_command(["keys", "refresh", "other.key", "store.iris"]) == MISUSED
    assert "realm" in complaint(capsys)
    assert contents() == before


@pytest.mark.usefixtures("realm")
def test_refreshing_renews_every_file_that_is_named_in_its_place(capsys: Captured) -> None:
    assert run_command(["keys", "cluster", "realm.key", "logs", "--out", "logs.iris", "--days", "1"]) == 0
    before = contents()
    capsys.readouterr()
    assert run_command(["keys", "refresh", "realm.key", "store.iris", "logs.iris"]) == 0
    assert capsys.readouterr().err == "iris: refreshed store.iris\niris: refreshed logs.iris\n"
    assert contents().keys() == before.keys()
    assert contents()["realm.key"] == before["realm.key"]
    assert Path("logs.iris").stat().st_mode & 0o777 == 0o600


# -- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("realm")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cluster", "realm.key", "bad name", "--out", "x"], "'bad name' is not a cluster name"),
        (["cluster", "realm.key", "logs"], "Missing option '--out' (see iris keys cluster --help)"),
        *(
            (["cluster", "realm.key", "logs", "--out", "x", "--days", days], "is not in the range 0.0001<=x<=36525")
            for days in ("0", "-1", "0.00001", "36526", "1e300")
        ),
        (["seal", "store.iris", "--out", "x", "--days", "1e9"], "is not in the range 0.0001<=x<=366"),
        (["seal", "store.iris", "--out", "x", "--days", "nan"], "'nan' is not a finite number"),
        (
            ["cluster", "realm.key", "logs", "--out", "absent/x"],
            "x: cannot be written: No such file or directory",
        ),
        (["cluster", "realm.key", "logs", "--out", "store.iris/x"], "cannot be written: Not a directory"),
        (["revoke", "realm.key", "--cluster", "store", "--out", "absent/x"], "absent/x: cannot be written"),
        (
            ["cluster", "realm.key", "logs", "--out", "x", "--seeds", "nonsense"],
            "'nonsense' is not an address: use tcp",
        ),
        (["cluster", "realm.key", "logs", "--out", "x", "--seeds", "tcp://host"], "'tcp://host' has no valid port"),
        (["cluster", "store.iris", "logs", "--out", "x"], "store.iris"),
        (["cluster", "absent.key", "logs", "--out", "x"], "absent.key: No such file or directory"),
        (["cluster", "realm.key", "logs", "--out", "store.iris"], "store.iris exists: nothing was changed"),
        (["cluster", "realm.key", "logs", "--out", "dangling"], "dangling exists: nothing was changed"),
        (["seal", "realm.key", "--out", "x"], "realm.key"),
        (["seal", "store.iris", "--out", "x", "--previous", "absent.iris"], "absent.iris: No such file or directory"),
        (["refresh", "realm.key"], "Missing argument 'CREDENTIAL...' (see iris keys refresh --help)"),
        (["refresh", "realm.key", "absent.iris"], "absent.iris: No such file or directory"),
        (["rotate", "realm.key", "turn"], "'turn' is not one of 'add', 'use', 'drop'"),
        (["rotate", "realm.key", "use"], "no gate secret has been added"),
        (["show"], "Missing argument 'CREDENTIAL' (see iris keys show --help)"),
        (["show", "realm.key"], "realm.key"),
        (["nonsense"], "No such command 'nonsense' (see iris keys --help)"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_changes_nothing(arguments: list[str], said: str, capsys: Captured) -> None:
    Path("dangling").symlink_to("nowhere")
    before = {name: Path(name).read_bytes() for name in ("realm.key", "store.iris")}
    assert run_command(["keys", *arguments]) == MISUSED
    assert said in complaint(capsys)
    assert {path.name for path in Path().iterdir()} == {"realm.key", "store.iris", "dangling"}
    assert {name: Path(name).read_bytes() for name in before} == before
