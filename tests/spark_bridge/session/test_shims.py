"""Shims: made once, by however many processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.shims import cache_directory, make_shim


def test_shims_are_made_once_for_each_text(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shim = make_shim(cache, "java", "#!/bin/sh\necho one")
    assert make_shim(cache, "java", "#!/bin/sh\necho one") == shim
    assert list(cache.iterdir()) == [shim]
    assert subprocess.run([shim / "bin" / "java"], capture_output=True, check=True).stdout == b"one\n"
    assert make_shim(cache, "java", "#!/bin/sh\necho other") != shim


def test_the_cache_is_the_users(tmp_path: Path) -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/iris")
    assert cache_directory({"HOME": "/h"}) == Path("/h/.cache/iris")


def test_many_processes_make_the_same_shim_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from iris.spark_bridge.session.shims import make_shim;"
        "sys.stdin.read(); print(make_shim(Path(sys.argv[1]), 'java', 'text'))"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "cache"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for run in runs:
        assert run.stdin is not None
        run.stdin.close()
    found: set[str] = set()
    for run in runs:
        assert run.stdout is not None
        with run.stdout:
            found.add(run.stdout.read())
        assert run.wait() == 0
    assert len(found) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_no_program_is_started_from_where_others_can_change_it(tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "cache"
    make_shim(cache, "java", "text")
    cache.chmod(mode)
    with pytest.raises(ConfigError, match=r"others can change the programs in it .* set XDG_CACHE_HOME"):
        make_shim(cache, "java", "text")
    cache.chmod(0o755)
    make_shim(cache, "java", "text")


def test_no_program_is_started_from_the_cache_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(tmp_path / "cache", 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match=r"others can change the programs in it .* set XDG_CACHE_HOME"):
        make_shim(tmp_path / "cache", "java", "text")


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cache directory"):
        make_shim(tmp_path / "file", "java", "text")
