"""Tables as they stand in docs/explanation/measured/streams.md, line by line as they become known."""

from __future__ import annotations


def row(*cells: str) -> None:
    """Print one line."""
    print("| " + " | ".join(cells) + " |", flush=True)


def heading(title: str, *columns: str) -> None:
    """Print the head of a table."""
    print(f"\n{title}\n", flush=True)
    row(*columns)
    row(*("---" for _ in columns))
