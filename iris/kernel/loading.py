"""Loading of modules without looking for garbage, of which it makes none."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def loading() -> Generator[None]:
    """Load modules without looking for garbage, unless nobody does so anyway.

    To look for it took a tenth of the time in which a node is loaded.  What is there afterwards counts as old, so it is
    not looked at as soon as something else is made.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            resume()


def resume() -> None:
    """Look for garbage again, and first among what is made from now on."""
    if not gc.get_freeze_count():  # else the program has frozen something, which would thaw
        gc.freeze()
        gc.unfreeze()  # into the oldest generation, without a look at anything
    gc.enable()
