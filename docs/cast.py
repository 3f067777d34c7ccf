"""docs/cast.svg: a terminal with the commands of the tutorial line by line, with what tests saw them print."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final

from docs.pages import ROOT, blocks

CAST: Final = ROOT / "docs" / "cast.svg"
SHOWN: Final = ("members.md",)
_ROW: Final = 22
_COLUMNS: Final = 78


def lines() -> list[str]:
    """Return the commands of a chapter of the tutorial, each with what it prints."""
    shown: list[str] = []
    for name in SHOWN:
        for block in blocks(ROOT / "docs" / "tutorial" / name):
            if block.language == "console":
                title = block.caption.partition(":")[0]
                if not shown or f"# {title}" not in shown[-8:]:
                    shown.append(f"# {title}")
                shown += [line[:_COLUMNS] for line in block.code.rstrip().splitlines()]
    return shown


def cast() -> dict[Path, str]:
    """Return the picture, by file."""
    shown = lines()
    height = 40 + _ROW * len(shown)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" font-size="14" '
            'font-family="ui-monospace, Menlo, Consolas, monospace">'
        ),
        "<title>A service, two members, and the loss of one</title>",
        (
            "<style>.l{opacity:0;animation:s .2s forwards}@keyframes s{to{opacity:1}}"
            "@media (prefers-reduced-motion:reduce){.l{opacity:1;animation:none}}</style>"
        ),
        f'<rect width="720" height="{height}" rx="8" fill="#1b1f2e"/>',
    ]
    for number, line in enumerate(shown):
        colour = "#8b93b0" if line.startswith("#") else "#9fe0a8" if line.startswith("$") else "#e8eaf2"
        parts.append(
            f'<text class="l" xml:space="preserve" x="20" y="{34 + _ROW * number}" fill="{colour}" '
            f'style="animation-delay:{0.25 * number:.2f}s">{escape(line)}</text>'
        )
    return {CAST: "\n".join([*parts, "</svg>", ""])}
