"""Processes that have used nng end with the status that they chose, whatever they have left open."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TALK = """
import os, sys
import pynng
from iris.doors.nng.sockets import open_socket
pull = open_socket(pynng.Pull0, 1000, None)
url = sys.argv[1]
listener = pull.listen(url)
port = str(listener.local_address).rpartition(":")[2]
pushes = [pynng.Push0() for _ in range(8)]
for socket in (pull, *pushes):
    socket.add_post_pipe_remove_cb(lambda pipe: None)
for push in pushes:
    push.dial(url.replace(":0", f":{port}"), block=True)
    push.send(b"x")
    assert pull.recv() == b"x"
"""

CLOSED = "for socket in (pull, *pushes):\n    socket.close()\nsys.exit(7)"
OPEN = "sys.exit(7)"
FORKED_BEFORE = """
import os, sys
import iris.doors.nng.sockets
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""

FORKED = """
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
sys.exit(7)
"""


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/x"])
@pytest.mark.parametrize("end", [CLOSED, OPEN, FORKED], ids=["closed", "open", "forked"])
def test_a_process_ends_with_its_status(url: str, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TALK + end, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("end", [CLOSED, OPEN], ids=["closed", "open"])
def test_a_child_that_was_forked_before_closes_what_it_opens(end: str) -> None:
    code = FORKED_BEFORE + TALK + "pull.close()\n" + "assert not pull.listeners\n" + end
    command = [sys.executable, "-c", code, "tcp://127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")


def test_nng_is_not_ended_before_its_threads() -> None:
    """Where pynng's handler ran, one of 178 gateways died of it; no handler of pynng's is left to be run."""
    code = "import atexit, pynng, iris.doors.nng.sockets as nng; before = atexit._ncallbacks(); "
    code += "atexit.unregister(pynng.nng._pynng_atexit); raise SystemExit(before - atexit._ncallbacks())"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
