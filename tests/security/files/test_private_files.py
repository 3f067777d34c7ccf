"""Files of secrets: written whole and 0600, refused when others could have read or replaced them."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from iris.kernel.errors import ConfigError
from iris.security.files import private_files
from iris.security.files.private_files import (
    LockHeld,
    locked,
    make_directories,
    make_private_directory,
    prepared_private,
    read_private,
    write_private,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_private(path, "credential")
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_is_written_is_read_and_only_the_owner_may(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    previous = os.umask(0)
    try:
        write_private(path, b"content", "credential")
    finally:
        os.umask(previous)
    assert read_private(path, "credential") == b"content"
    assert mode(path) == 0o600


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666, 0o777])
def test_a_file_open_to_others_is_refused_with_the_command_that_mends_it(tmp_path: Path, loose: int) -> None:
    path = tmp_path / "my secret"
    write_private(path, b"content", "credential")
    path.chmod(loose)
    assert refusal(path) == f"credential {path}: open to others (mode {loose:04o}): run: chmod 600 '{path}'"
    command = refusal(path).partition("run: ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert read_private(path, "credential") == b"content"


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    write_private(path, b"content", "credential")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert f"belongs to user {user}, not to user {user + 1}: run as root: chown {user + 1} {path}" in refusal(path)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_another_user_could_have_put_there_is_not_to_be_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / "found"
    path.mkdir(mode=0o700) if kind == "directory" else write_private(path, b"content", "credential")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(ConfigError) as caught:
        make_private_directory(path, "credential") if kind == "directory" else read_private(path, "credential")
    text = str(caught.value)
    assert f"belongs to user {user}, not to user {user + 1}, and anybody could have put it there" in text
    assert f"use another path, or have root remove it: rm -r {path}" in text
    assert "chown" not in text


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_directories_are_closed_to_others_and_so_is_what_is_made_above_them(tmp_path: Path, umask: int) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    before = mode(tmp_path / "there")
    previous = os.umask(umask)
    try:
        make_directories(tmp_path / "there" / "a" / "b")
        make_directories(tmp_path / "there" / "a" / "b")
    finally:
        os.umask(previous)
    assert mode(tmp_path / "there") == before
    assert mode(tmp_path / "there" / "a") == mode(tmp_path / "there" / "a" / "b") == 0o700


def test_a_symbolic_link_is_refused_with_the_real_path(tmp_path: Path) -> None:
    path, link = tmp_path / "secret", tmp_path / "link"
    write_private(path, b"content", "credential")
    link.symlink_to(path)
    assert f"is a symbolic link: give the real path, {path}" in refusal(link)


def test_a_symbolic_link_on_the_way_is_refused_unless_root_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, link = tmp_path / "real", tmp_path / "link"
    directory.mkdir()
    write_private(directory / "secret", b"content", "credential")
    link.symlink_to(directory)
    owner = link.lstat().st_uid
    lstat = Path.lstat

    def owned_by(user: int) -> None:
        def lie(path: Path) -> os.stat_result:
            status = lstat(path)
            values = list(status)
            values[stat.ST_UID] = user if path == link else status.st_uid
            return os.stat_result(values)

        monkeypatch.setattr(Path, "lstat", lie)

    owned_by(owner + 1 if owner == 0 else owner)
    assert f"credential {link}: is a symbolic link" in refusal(link / "secret")
    with pytest.raises(ConfigError, match="is a symbolic link"):
        write_private(link / "other", b"", "credential")
    owned_by(0)
    assert read_private(link / "secret", "credential") == b"content"


def test_a_link_put_in_place_after_the_check_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "secret", tmp_path / "link"
    write_private(path, b"content", "credential")
    link.symlink_to(path)

    def see_nothing(*_: object, **__: object) -> bool:
        """The check looked before the link was made."""
        return False

    monkeypatch.setattr(private_files, "_check_links", see_nothing)
    assert "is a symbolic link" in refusal(link)


@pytest.mark.parametrize("what", ["directory", "fifo"])
def test_what_is_not_a_plain_file_is_refused_without_waiting(tmp_path: Path, what: str) -> None:
    path = tmp_path / "odd"
    if what == "fifo":
        os.mkfifo(path, 0o600)
    else:
        path.mkdir(mode=0o700)
    assert refusal(path) == f"credential {path}: not a plain file"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"credential {tmp_path / 'none'}: No such file or directory"


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large"
    write_private(path, bytes(private_files.MAX_FILE), "credential")
    assert len(read_private(path, "credential")) == private_files.MAX_FILE
    write_private(path, bytes(private_files.MAX_FILE + 1), "credential")
    assert "larger than" in refusal(path)


def test_an_existing_file_is_replaced_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_private(path, b"first", "credential", replace=False)
    with pytest.raises(ConfigError, match="exists already"):
        write_private(path, b"second", "credential", replace=False)
    assert read_private(path, "credential") == b"first"
    write_private(path, b"third", "credential", replace=True)
    assert read_private(path, "credential") == b"third"


def test_a_file_open_to_others_is_private_after_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o666)
    write_private(path, b"new", "credential")
    assert mode(path) == 0o600


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    write_private(path, b"old", "credential")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        write_private(path, b"new", "credential")
    assert read_private(path, "credential") == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_writing_into_a_missing_directory_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: No such file or directory\Z"):
        write_private(tmp_path / "none" / "secret", b"", "credential")


def test_a_prepared_file_is_there_after_the_block_and_only_if_that_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with prepared_private(path, b"content", "credential"):
        assert not path.exists()
        (draft,) = tmp_path.iterdir()
        assert (mode(draft), draft.read_bytes()) == (0o600, b"content"), "all that could fail has been done"
    assert read_private(path, "credential") == b"content"
    for failure in (RuntimeError("no"), KeyboardInterrupt()):
        with pytest.raises(type(failure)), prepared_private(path, b"other", "credential"):
            raise failure
    assert read_private(path, "credential") == b"content"
    with pytest.raises(ConfigError, match="exists already"), prepared_private(path, b"", "credential", replace=False):
        pass
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_does_not_let_the_block_begin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):  # noqa: SIM117 -- the block is what matters
        with prepared_private(tmp_path / "absent" / "secret", b"content", "credential"):
            pytest.fail("it could not be written")


def test_directories_are_made_private_with_all_above_them(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        path = make_private_directory(tmp_path / "a" / "b", "local realm")
    finally:
        os.umask(previous)
    assert mode(path) == mode(path.parent) == 0o700
    assert make_private_directory(path, "local realm") == path


def test_a_directory_open_to_others_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o755)
    with pytest.raises(ConfigError, match=rf"open to others \(mode 0755\): run: chmod 700 {path}\Z"):
        make_private_directory(path, "local realm")


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_private_directory(tmp_path / "theirs", "runtime directory")
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {user}"):
        make_private_directory(path, "runtime directory")


@pytest.mark.parametrize("what", ["file", "link"])
def test_what_stands_in_the_place_of_a_directory_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "place"
    if what == "file":
        path.write_bytes(b"")
    else:
        (tmp_path / "real").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match=r"not a directory|is a symbolic link"):
        make_private_directory(path, "local realm")


def test_a_directory_that_cannot_be_made_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cannot be made: Not a directory\Z"):
        make_private_directory(tmp_path / "file" / "below", "local realm")


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    inside = 0
    most = 0
    switch = threading.Barrier(4)

    def work() -> None:
        nonlocal inside, most
        switch.wait()
        for _ in range(50):
            with locked(tmp_path / "lock", "local realm"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from iris.security.files.private_files import locked\n"
        "with locked(Path(sys.argv[1]), 'local realm'): os._exit(7)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False)
    assert done.returncode == 7
    with locked(tmp_path / "lock", "local realm"):
        pass


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), locked(tmp_path / "none" / "lock", "local realm"):
        raise AssertionError("not reached")


def test_a_lock_that_another_process_keeps_is_waited_for_as_long_as_was_said(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock", "local realm"),
        pytest.raises(LockHeld, match=r"local realm .*lock: another process has held this lock for 0\.05 s"),
        locked(tmp_path / "lock", "local realm", 0.05),
    ):
        raise AssertionError("not reached")
    with locked(tmp_path / "lock", "local realm", 0.05):
        pass


def test_a_place_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match="cannot be locked: No locks available"), locked(tmp_path / "lock", "realm"):
        raise AssertionError("not reached")
