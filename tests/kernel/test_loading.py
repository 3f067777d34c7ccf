"""What is loaded counts as old, and whether garbage is looked for stays as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import gc
from iris.kernel.loading import loading

{before}
with loading():
    assert not gc.isenabled()
    made = ["a list that a module holds"]
print(gc.isenabled(), gc.get_freeze_count() > 0, any(one is made for one in gc.get_objects(generation=2)))
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "True False True"), ("gc.disable()", "False False False"), ("gc.freeze()", "True True False")],
    ids=["looked for", "not looked for", "frozen"],
)
def test_what_a_program_has_set_for_its_garbage_stays(before: str, after: str) -> None:
    code = LOADED.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == after
