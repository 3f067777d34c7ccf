"""Files, directories and sockets that a node leaves are closed to others, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_NODES = """
import os, sys
from pathlib import Path

os.umask(int(sys.argv[1], 8))

import trio
import iris
from iris.cluster.discovery.address_book import AddressBook
from iris.cluster.discovery.address_book import AddressFile
from iris.security.authority import issuing
from iris.security.files.credential_file import save_credential
from iris.security.files.realm_files import save_realm
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.session.shims import cache_directory, make_shim
from iris.spark_bridge.staging.staging import Staging, new_part
from iris.spark_bridge.staging.usage import Usage

home = Path(os.environ["HOME"])
import time

root = issuing.create_realm(os.urandom)
save_realm(home / "realm", root, entropy=os.urandom, passphrase=None)
root, credential = issuing.issue_cluster(root, "shop", entropy=os.urandom, wall_now=time.time())
save_credential(home / "credential", credential)
make_shim(cache_directory(os.environ), "java", "#!/bin/sh\\n")
store = open_store(home / "made" / "on" / "the way" / "log", shards=[0], entropy=os.urandom)
staging = Staging(home / "made" / "staged", Usage(most=2**30, most_of_owner=2**30))
with staging.write(new_part(query="q", batch=1, partition=0), "shop") as write:
    write(b"rows")
store.close()


async def main() -> None:
    async with iris.open_node(lan=False), iris.open_node(credential=home / "credential", lan=False) as node:
        book = AddressBook()
        book.saw(["tcp://192.0.2.1:7"], 1.0)
        AddressFile(Path(os.environ["IRIS_HOME"]) / "addresses" / f"{node.realm}.json").save(book, 1.0)
        for place in sys.argv[2:]:
            for directory, _, files in os.walk(place):
                for name in (directory, *(os.path.join(directory, file) for file in files)):
                    print(oct(os.lstat(name).st_mode), name)


trio.run(main)
"""


@pytest.mark.parametrize("umask", ["000", "022"])
def test_nothing_that_a_node_or_bridge_makes_is_open_to_others(tmp_path: Path, umask: str) -> None:
    home = tmp_path / "h"
    home.mkdir(mode=0o700)
    with tempfile.TemporaryDirectory(prefix="im-") as name:  # short: paths of sockets end at 107 bytes
        modes = run_nodes(umask, home, Path(name))
    open_to_others = {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077}
    # What is executable by all is behind directories that are not.
    assert {name for name in open_to_others if "/.cache/iris/java-" not in name} == set()
    assert {stat.S_IFMT(mode) for mode in modes.values()} == {stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK}
    assert {path.suffix for path in modes} >= {".node", ".json", ".arrow", ".mdb"}


def run_nodes(umask: str, home: Path, runtime: Path) -> dict[Path, int]:
    """Return the mode of everything below two directories while nodes are up in a process of their own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("IRIS", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-c", _NODES, umask, str(home), str(runtime)],
        env={
            **environment,
            "HOME": str(home),
            "IRIS_HOME": str(home / "data" / "iris"),
            "XDG_RUNTIME_DIR": str(runtime),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return {Path(name): int(mode, 8) for mode, _, name in (line.partition(" ") for line in done.stdout.splitlines())}
