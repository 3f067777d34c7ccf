"""Spark's workers collect all garbage after each task: what stays anyway is not looked at."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, os
from iris.spark_bridge.datasource.worker import settle_in

def told():
    before = gc.get_freeze_count()
    settle_in()
    frozen = gc.get_freeze_count()
    more = [[] for _ in range(1000)]
    settle_in()
    again = gc.get_freeze_count()
    assert again - frozen >= 1000, "what the first task has imported, too"
    yet_more = [[] for _ in range(1000)]
    settle_in()
    assert gc.get_freeze_count() == again, "only the first two calls"
    return frozen - before

modules = told()
made = [[] for _ in range(1000)]
child = os.fork()
if not child:
    os._exit(told() < 1000)  # the child of a process that has settled in does so, too
print(modules, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_what_is_imported_is_frozen_twice_in_each_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    frozen, child = map(int, done.stdout.split())
    assert frozen > 1000
    assert child == 0
