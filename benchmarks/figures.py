"""``make figures``: puts the tables that commands print behind the comments of the pages that name these commands.

    python -m benchmarks.figures [WORD ...]

A page of docs/explanation says ``<!-- figures: COMMAND -->``; what follows, up to ``<!-- end of the figures -->``, is
what COMMAND printed as a table, with the date and the load of the machine.  With words, only the commands that have one
of them run.  The pages of ``make bench`` are made by that, which refuses a busy machine.
"""

from __future__ import annotations

import datetime
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "docs" / "explanation"
PLACE: Final = re.compile(
    r"(?P<begin><!-- figures: python (?P<arguments>.+?) -->\n).*?(?P<end><!-- end of the figures -->)", re.DOTALL
)


def table(printed: str) -> str:
    """Return the lines of what was printed that are rows of a table."""
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    if len(rows) < 3:
        raise ValueError(f"no table: {printed!r}")
    return "\n".join(rows)


def run(arguments: str) -> str:
    """Run a command of Python, and return its table with how it was made."""
    print(f"python {arguments}", file=sys.stderr, flush=True)
    load = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, *shlex.split(arguments)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    date = datetime.date.today().isoformat()
    python = ".".join(map(str, sys.version_info[:3]))
    made = f"Made by `python {arguments}` on {date}, load {load:.0f}, {os.cpu_count()} processors, Python {python}."
    return f"{made}\n\n{table(done.stdout)}"


def places() -> Iterator[tuple[Path, str]]:
    """Yield each page and command."""
    for page in sorted(PAGES.rglob("*.md")):
        for place in PLACE.finditer(page.read_text()):
            yield page, place["arguments"]


def main(words: Sequence[str]) -> None:
    """Make the tables whose command has one of these words, or all."""
    every = list(places())
    chosen = [place for place in every if not words or any(word in place[1] for word in words)]
    if not chosen:
        sys.exit(f"no figures of {' '.join(words)}: {', '.join(arguments for _, arguments in every)}")
    for page, arguments in chosen:
        made = run(arguments)
        text = page.read_text()
        for place in PLACE.finditer(text):
            if place["arguments"] == arguments:
                page.write_text(text[: place.end("begin")] + f"\n{made}\n\n" + text[place.start("end") :])


if __name__ == "__main__":
    main(sys.argv[1:])
