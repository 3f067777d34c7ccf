"""The local realm: there on first use, the same for all processes of a user, closed to others."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from iris.kernel.errors import ConfigError
from iris.security.files.credential_file import encode_credential
from iris.security.files.local_realm import (
    CERTIFICATE_LIFETIME,
    _unfit,
    iris_home,
    open_local_realm,
    private_home,
    runtime_directory,
)
from iris.security.identity.signing import SigningKey
from tests.support.realms import DAY, WALL, seeded_entropy
from tests.support.sessions import finish, start


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home" / "iris"


def test_it_is_made_on_first_use_and_found_again(home: Path) -> None:
    first = open_local_realm(home=home)
    assert open_local_realm(home=home).fingerprint == first.fingerprint
    assert len(first.fingerprint) == 32
    assert open_local_realm(home=home.parent / "another").fingerprint != first.fingerprint


def test_everything_in_it_is_for_its_user_only(home: Path) -> None:
    previous = os.umask(0)
    try:
        open_local_realm(home=home).credential("orders", wall_now=WALL)
    finally:
        os.umask(previous)
    found = {path.relative_to(home): stat.S_IMODE(path.lstat().st_mode) for path in home.rglob("*")}
    assert found == {
        Path("local"): 0o700,
        Path("local/clusters"): 0o700,
        Path("local/clusters/orders.json"): 0o600,
        Path("local/lock"): 0o600,
        Path("local/realm.json"): 0o600,
    }
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_credentials_of_any_two_names_understand_each_other(home: Path) -> None:
    realm = open_local_realm(home=home)
    entropy = seeded_entropy(1)
    orders, billing = (
        realm.credential(name, wall_now=WALL).new_identity(entropy, WALL) for name in ("orders", "billing")
    )
    assert orders.realm_id == realm.fingerprint
    _, answered = finish(*start(orders, billing))
    assert answered.peer.cluster == "orders"
    assert answered.peer.certificate.may_serve("anything.else")
    assert answered.peer.certificate.rights.gateway


@pytest.mark.parametrize("name", ["a", ".", "..", "...", "x" * 128, "A-b_c.9"])
def test_every_valid_name_has_a_credential_which_is_remembered(home: Path, name: str) -> None:
    first = open_local_realm(home=home).credential(name, wall_now=WALL)
    again = open_local_realm(home=home).credential(name, wall_now=WALL + DAY)
    assert first.name == name
    assert encode_credential(again) == encode_credential(first)


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a" * 129, "a b", "a\n"])
def test_other_names_are_refused(home: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a cluster name"):
        open_local_realm(home=home).credential(name, wall_now=WALL)


def test_a_certificate_near_its_end_is_renewed_with_the_same_key(home: Path) -> None:
    realm = open_local_realm(home=home)
    first = realm.credential("orders", wall_now=WALL)
    late = WALL + CERTIFICATE_LIFETIME - 29 * DAY
    renewed = realm.credential("orders", wall_now=late)
    assert isinstance(first.keys, SigningKey)
    assert isinstance(renewed.keys, SigningKey)
    assert renewed.keys.public == first.keys.public
    assert renewed.certificate.not_after == late + CERTIFICATE_LIFETIME
    assert encode_credential(realm.credential("orders", wall_now=late)) == encode_credential(renewed)


def test_a_clock_that_was_set_back_makes_a_certificate_that_is_valid_now(home: Path) -> None:
    realm = open_local_realm(home=home)
    realm.credential("orders", wall_now=WALL)
    assert realm.credential("orders", wall_now=WALL - 400 * DAY).certificate.not_before < WALL - 400 * DAY


def test_credentials_of_a_realm_that_was_removed_are_made_anew(home: Path) -> None:
    first = open_local_realm(home=home).credential("orders", wall_now=WALL)
    (home / "local" / "realm.json").unlink()
    second = open_local_realm(home=home).credential("orders", wall_now=WALL)
    assert second.realm != first.realm
    assert second.realm_id == open_local_realm(home=home).fingerprint


PROGRAM = """
import sys
from pathlib import Path
from iris.security.files.local_realm import open_local_realm
print("ready", flush=True)
sys.stdin.readline()
realm = open_local_realm(home=Path(sys.argv[1]))
credential = realm.credential("orders", wall_now=1.8e9)
print(realm.fingerprint, credential.certificate.public_key.hex())
"""


def test_processes_that_start_at_the_same_moment_get_the_same_realm(home: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(home)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(4)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(answers) == 1
    assert answers.pop().startswith(open_local_realm(home=home).fingerprint)


@pytest.mark.parametrize(
    ("path", "mode", "mend"),
    [
        ("", 0o755, "chmod 700"),
        ("local", 0o750, "chmod 700"),
        ("local/clusters", 0o777, "chmod 700"),
        ("local/realm.json", 0o644, "chmod 600"),
        ("local/clusters/orders.json", 0o640, "chmod 600"),
    ],
)
def test_what_is_open_to_others_is_refused_with_the_command_that_mends_it(
    home: Path, path: str, mode: int, mend: str
) -> None:
    open_local_realm(home=home).credential("orders", wall_now=WALL)
    (home / path).chmod(mode)
    with pytest.raises(ConfigError, match=f"run: {mend} {home / path}"):
        open_local_realm(home=home).credential("orders", wall_now=WALL)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"iris": "realm", "version": 1, "kind": "local"}'])
def test_a_damaged_file_is_named(home: Path, content: bytes) -> None:
    open_local_realm(home=home)
    file = home / "local" / "realm.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"local realm {file}: "):
        open_local_realm(home=home)


def test_the_realm_file_shows_which_secrets_it_holds_and_the_repr_none(home: Path) -> None:
    realm = open_local_realm(home=home)
    fields = json.loads((home / "local" / "realm.json").read_bytes())
    assert set(fields) == {"iris", "version", "kind", "root_key", "gate_secret"}
    assert fields["root_key"] not in repr(realm)
    assert repr(realm) == f"<LocalRealm {realm.fingerprint} in {home / 'local'}>"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"IRIS_HOME": "/a", "XDG_DATA_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_DATA_HOME": "/b", "HOME": "/c"}, "/b/iris"),
        ({"HOME": "/c"}, "/c/.local/share/iris"),
        ({"IRIS_HOME": "", "XDG_DATA_HOME": "", "HOME": "/c"}, "/c/.local/share/iris"),
    ],
)
def test_the_home_of_iris_follows_the_environment(environment: dict[str, str], expected: str) -> None:
    assert iris_home(environment) == Path(expected)


def test_without_any_variable_the_home_of_the_user_counts() -> None:
    assert iris_home({}) == Path("~").expanduser() / ".local" / "share" / "iris"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME", raising=False)
    with pytest.raises(ConfigError, match="no home directory: set IRIS_HOME to a directory"):
        iris_home({})


@pytest.mark.parametrize("place", ["/proc/nowhere/iris", "a file"])
def test_a_home_that_cannot_be_made_is_one_clear_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "a file":
        (tmp_path / "file").touch()
        place = str(tmp_path / "file" / "iris")
    monkeypatch.setenv("IRIS_HOME", place)
    for make in (lambda: private_home("address book", "addresses"), open_local_realm):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value).startswith(f"Iris home {place}: cannot be made: ")
        assert str(caught.value).endswith("set IRIS_HOME to a directory that this user can write")


def test_what_stands_in_the_place_of_a_home_is_named_and_nothing_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a directory; move away what stands there"):
        private_home("address book", "addresses")


def test_a_home_is_made_with_what_is_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    for _ in range(2):
        made = private_home("address book", "addresses")
        assert made == tmp_path / "home" / "addresses"
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


# -- runtime directory ----------------------------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stands for /tmp."""
    directory = tmp_path / "t"
    directory.mkdir()
    directory.chmod(0o1777)
    monkeypatch.setattr("iris.security.files.local_realm._TEMPORARY", directory)
    return directory


def test_sockets_are_in_the_runtime_directory_of_the_session(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr("iris.security.files.local_realm._MAX_DIRECTORY", 1000)
    realm = open_local_realm(home=home)
    directory = runtime_directory(realm.fingerprint, {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert directory == tmp_path / "iris" / realm.fingerprint
    assert stat.S_IMODE(directory.stat().st_mode) == stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
    assert runtime_directory(realm.fingerprint, {"XDG_RUNTIME_DIR": str(tmp_path)}) == directory
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("runtime", [None, "", "/nonexistent", "x" * 70])
def test_otherwise_they_are_in_a_directory_of_this_user_below_tmp(
    home: Path, temporary: Path, runtime: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    realm = open_local_realm(home=home)
    environment = {} if runtime is None else {"XDG_RUNTIME_DIR": runtime}
    directory = runtime_directory(realm.fingerprint, environment)
    assert directory == temporary / f"iris-{os.geteuid()}" / realm.fingerprint
    assert caplog.messages == []


def test_a_runtime_directory_that_is_too_long_for_sockets_is_not_used_and_that_is_said(
    home: Path, temporary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "iris")
    realm = open_local_realm(home=home)
    base = tmp_path / ("x" * 30)
    base.mkdir(mode=0o700)
    directory = runtime_directory(realm.fingerprint, {"XDG_RUNTIME_DIR": str(base)})
    assert directory == temporary / f"iris-{os.geteuid()}" / realm.fingerprint
    (line,) = caplog.messages
    assert line.startswith(
        f"XDG_RUNTIME_DIR is not used: {base} is too long for the paths of sockets: it has {len(str(base))} "
        f"characters, and may have 26; sockets are in {directory.parent}"
    )


def test_a_runtime_directory_of_somebody_else_is_not_used_and_that_is_said_once(
    home: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    realm = open_local_realm(home=home)
    user = os.geteuid()
    (tmp_path / "r").mkdir(mode=0o700)

    def another_users(directory: Path, _: int) -> str:
        return _unfit(directory, user + 1)

    monkeypatch.setattr("iris.security.files.local_realm._unfit", another_users)
    for _ in range(3):
        directory = runtime_directory(realm.fingerprint, {"XDG_RUNTIME_DIR": str(tmp_path / "r")})
        assert directory == temporary / f"iris-{user}" / realm.fingerprint
    (line,) = caplog.messages
    assert line.startswith(f"XDG_RUNTIME_DIR is not used: {tmp_path / 'r'} belongs to user {user}, not to user")
    assert f"sockets are in {temporary / f'iris-{user}'}" in line


@pytest.mark.parametrize(
    ("mode", "fits"), [(0o700, True), (0o755, True), (0o770, False), (0o777, False), (0o1777, False)]
)
def test_a_runtime_directory_that_others_can_write_to_is_not_used(
    home: Path,
    temporary: Path,
    tmp_path: Path,
    mode: int,
    fits: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iris.security.files.local_realm._MAX_DIRECTORY", 1000)
    realm = open_local_realm(home=home)
    base = tmp_path / f"r{mode:o}"
    base.mkdir()
    base.chmod(mode)
    directory = runtime_directory(realm.fingerprint, {"XDG_RUNTIME_DIR": str(base)})
    if fits:
        assert directory == base / "iris" / realm.fingerprint
        assert caplog.messages == []
    else:
        assert directory == temporary / f"iris-{os.geteuid()}" / realm.fingerprint
        assert f"{base} can be written to by others (mode {mode:04o}; it should be 0700)" in caplog.messages[0]
        assert list(base.iterdir()) == []


def test_a_directory_that_somebody_else_has_put_there_is_refused_and_nobody_is_told_to_take_it_over(
    home: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm = open_local_realm(home=home)
    user = os.geteuid()
    squatted = temporary / f"iris-{user + 1}"
    squatted.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(ConfigError) as caught:
        runtime_directory(realm.fingerprint, {})
    text = str(caught.value)
    assert f"runtime directory {squatted}: belongs to user {user}, not to user {user + 1}" in text
    assert "set XDG_RUNTIME_DIR to a directory of this user with mode 0700" in text
    assert f"rm -r {squatted}" in text
    assert "chown" not in text


def test_where_everybody_can_replace_what_others_have_nothing_is_put(home: Path, temporary: Path) -> None:
    realm = open_local_realm(home=home)
    temporary.chmod(0o777)
    with pytest.raises(
        ConfigError, match=r"anybody can replace what is in .* without the sticky bit.* set XDG_RUNTIME_DIR"
    ):
        runtime_directory(realm.fingerprint, {})
    assert list(temporary.iterdir()) == []
    temporary.chmod(0o700)
    runtime_directory(realm.fingerprint, {})


def test_a_link_that_somebody_has_put_there_is_refused(home: Path, temporary: Path, tmp_path: Path) -> None:
    realm = open_local_realm(home=home)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (temporary / f"iris-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        runtime_directory(realm.fingerprint, {})


def test_the_path_of_a_socket_fits_whatever_the_user(home: Path) -> None:
    realm = open_local_realm(home=home)
    longest = len(f"/tmp/iris-{2**32 - 1}/{realm.fingerprint}/{'f' * 32}.ipc")
    assert longest <= 107
