"""The code blocks of the pages, for docs/build.py, which checks them, and for the tests, which run them.

| block | what it is | what is done with it |
|---|---|---|
| ``python`` | a snippet | run in a session with the other snippets of its page, against nodes in memory |
| ``{literalinclude}`` | a program that is kept in examples/ | run in a process of its own, by this page or by a test |
| ``output`` | what the block above it prints | compared; ``...`` stands for any text, a line of it for any lines |
| ``console`` | commands after ``$``, with what they print | run in a shell, and compared |
| ``js``, ``go`` | a program for pages and Node.js, or for Go | run by a test, and its output compared |
| ``sh`` | commands that are not run: ``NOT_RUN`` | read: verb, options, module and target exist |
| ``toml``, ``json``, ``ini``, ``yaml`` | a file | parsed |
| ``text`` | a layout, a formula, a tree | nothing: it is no code |
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LANGUAGES: Final = frozenset({"python", "output", "console", "js", "go", "sh", "toml", "json", "ini", "yaml", "text"})
NOT_RUN: Final = {
    "make": "sets up what it needs and takes minutes; CI runs `make test`",
    "iris demo": "a minute with Spark; a test runs it with fewer rows",
    "python -m benchmarks": "minutes to hours; a test runs a small version of each case",
    "spark-submit": "needs a cluster of Spark; `tests/support/spark_cluster.py` starts one",
    "tar -C deps": "packs what `pip install --target` has put there; a long test does the same and submits it",
    "PYTHONPATH=$(python": "starts Spark's server for other machines; a long test starts one in its own process",
    "python3 -m venv": "makes an environment, as `make dist` does",
    ". .venv/bin/activate": "the same",
    "ssh": "needs a second machine",
    "kafka-": "comes with Kafka, which tests ask by its client",
    "iris bridge --election": "needs etcd on other machines; `tests/support/takeover.py` starts one here",
    "iris bridge --kafka": "needs Kafka; `tests/support/kafka.py` starts one",
    "sha256sum": "needs the files of a release; `tests/project/test_wheel.py` signs and checks some",
    "pip install": "needs the index of packages; `make dist` installs the wheel into an empty environment",
}
"""How the commands of ``sh`` blocks begin, and why no test runs them."""

FENCE: Final = re.compile(r"^(```+)([^\n`]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
INDEX: Final = re.compile(r"^<!-- index: (.*?) -->$", re.MULTILINE | re.DOTALL)
"""Words that newcomers look for, divided by commas: a comment below the title of the page that has them.  docs/conf.py
makes entries of the site's index of them, which its search puts before what it finds in texts."""
_DIRECTIVE: Final = re.compile(r"\{([\w-]+)\}\s*(.*)")
_OPTION: Final = re.compile(r"^:([\w-]+):\s*(.*)\n", re.MULTILINE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    code: str
    file: Path | None
    """The program that it shows."""
    options: dict[str, str]

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def caption(self) -> str:
        """The line above it."""
        return self.options.get("caption", "")


def pages() -> list[Path]:
    """Return every page: the site's and those beside the code."""
    site = (path for path in (ROOT / "docs").rglob("*.md") if "_static" not in path.parts)
    return sorted([*ROOT.glob("*.md"), *site, *(ROOT / "examples").rglob("*.md")])


def index_words(text: str) -> list[str]:
    """Return the words for which a page is the one to read."""
    return [word for words in INDEX.findall(text) for word in re.split(r",\s+", words)]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page, but no other directives."""
    text = page.read_text()
    for match in FENCE.finditer(text):
        info, code = match[2].strip(), match[3]
        line = text[: match.start()].count("\n") + 1
        file: Path | None = None
        options: dict[str, str] = {}
        directive = _DIRECTIVE.fullmatch(info)
        if directive:
            if directive[1] not in ("code-block", "literalinclude"):
                continue
            while option := _OPTION.match(code):
                options[option[1]] = option[2].strip().strip('"')
                code = code[option.end() :]
            code = code.removeprefix("\n")
            info = directive[2].strip()
            if directive[1] == "literalinclude":
                shown = file = (page.parent / info).resolve()
                code = shown.read_text() if shown.exists() else ""
                info = options.get("language", "text")
        yield Block(page=page, line=line, language=info, code=code, file=file, options=options)


def matches(expected: str, printed: str) -> bool:
    """Tell whether ``printed`` is ``expected``, in which ``...`` stands for any text and a line of it for any lines."""
    return re.fullmatch(_pattern(expected), _plain(printed) + "\n") is not None


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def _pattern(expected: str) -> str:
    parts: list[str] = []
    for line in _plain(expected).splitlines():
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*")
        else:
            parts.append(".*".join(map(re.escape, line.split("..."))) + r"\n")
    return "".join(parts) or r"\n?"
