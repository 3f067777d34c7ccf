"""The site of ``make docs``: no warning, and all of it works from files, without server or network."""

from __future__ import annotations

import importlib.util
import json
import re
import resource
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import final
from urllib.parse import unquote, urlsplit

import pytest

from docs.build import sphinx
from tests.support.browser import open_page
from tests.support.newcomers import PAGE_OF, PAGES_OF

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 600

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="no Sphinx: pip install -e .[docs]")


@final
class Page(HTMLParser):
    """The targets of a page, and the names that others may link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element names and where it leads."""
        values = {name: value for name, value in attrs if value is not None}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        self.targets |= {values[name] for name in ("href", "src") if name in values}


@pytest.fixture(
    scope="module",
    params=[pytest.param((), marks=pytest.mark.long, id="as it is"), pytest.param(("plain",), id="plain")],
)
def built_site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        sphinx(target / "html", target / "doctrees", *request.param),
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 180, "a minute of processor time on a quiet machine"
    return target / "html"


def local(pages: dict[Path, Page]) -> Iterator[tuple[Path, str, Path, str]]:
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if not parts.scheme and not parts.netloc:
                file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                yield path, target, file, parts.fragment


def test_every_link_of_the_site_leads_to_a_file_and_a_place_in_it(built_site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in built_site.rglob("*.html")}
    assert len(pages) > 80
    broken = [
        f"{path.relative_to(built_site)}: {target}"
        for path, target, file, anchor in local(pages)
        if not file.is_file() or (anchor and file in pages and unquote(anchor) not in pages[file].names)
    ]
    assert broken == []


def test_the_site_asks_no_network(built_site: Path) -> None:
    """Links lead elsewhere; scripts, styles, fonts and pictures are files of the site."""
    elsewhere = re.compile(r"""(?:\bsrc|<link[^>]*\bhref)=["'](?:https?:)?//|url\(["']?(?:https?:)?//|@import""")
    assert [
        str(path.relative_to(built_site))
        for path in built_site.rglob("*")
        if path.suffix in {".html", ".css"} and elsewhere.search(path.read_text())
    ] == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser is there: apt install chromium")
def test_search_finds_pages_from_files(built_site: Path) -> None:
    with open_page(f"{(built_site / 'search.html').as_uri()}?q=idempotent") as page:
        found = page.run(
            """
            const list = document.getElementById("search-results");
            for (;;) {
              const links = [...list.querySelectorAll("li a")].map((link) => link.getAttribute("href"));
              if (links.some((link) => link.includes("idempotent_handler"))) return links;
              await new Promise((go) => setTimeout(go, 50));
            }
            """
        )
    assert any("howto/calls/idempotent_handler.html" in link for link in found)


def found_by_search(site: Path, questions: Iterable[str]) -> dict[str, list[str]]:
    """Return the pages that the search of the site finds for each question, the best one first."""
    with open_page((site / "search.html").as_uri()) as page:
        found: dict[str, list[str]] = page.run(
            f"const questions = {json.dumps(sorted(questions))};"
            """
            while (!Search._index) await new Promise((go) => setTimeout(go, 50));
            const pages = (results) => [...new Set(results.reverse().map(([page]) => page))];
            const found = (question) => pages(Search._performSearch(...Search._parseQuery(question)));
            return Object.fromEntries(questions.map((question) => [question, found(question)]));
            """
        )
    return found


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser is there: apt install chromium")
def test_search_puts_the_right_page_first_for_the_words_of_newcomers(built_site: Path) -> None:
    assert {word: pages[0] for word, pages in found_by_search(built_site, PAGE_OF).items()} == PAGE_OF


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser is there: apt install chromium")
def test_search_has_the_right_page_among_the_first_two_for_a_question_of_several_words(built_site: Path) -> None:
    found = found_by_search(built_site, PAGES_OF)
    assert {question: pages[:2] for question, pages in found.items() if not PAGES_OF[question] & set(pages[:2])} == {}
