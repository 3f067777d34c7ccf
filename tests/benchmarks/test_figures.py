"""``make figures``: a page names the command behind each table, and gets what that prints."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
from pathlib import Path

import pytest

from benchmarks import figures, house

PAGE = """\
# Page

<!-- figures: python -c "{code}" -->

| old |
|---|
| 1 |

<!-- end of the figures -->

The rest.
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "PAGES", tmp_path)
    return tmp_path / "page.md"


def test_every_command_of_the_pages_is_of_this_tree_and_has_its_table() -> None:
    places = list(figures.places())
    assert len(places) >= 5
    for page, arguments in places:
        flag, module, *_ = shlex.split(arguments)
        assert (flag, module.split(".")[0]) == ("-m", "benchmarks"), arguments
        assert importlib.util.find_spec(module), arguments
        (place,) = (one for one in figures.PLACE.finditer(page.read_text()) if one["arguments"] == arguments)
        assert figures.table(place[0]), arguments


def test_what_a_command_prints_takes_the_place_of_the_table_before(page: Path) -> None:
    page.write_text(PAGE.format(code="print('said'); print('| new |'); print('|---|'); print('| 2 |')"))
    figures.main(["| new |"])
    before, made, table, end, rest = page.read_text().split("\n\n")[1:]
    assert made.startswith("Made by `python -c")
    assert ", load " in made
    assert table == "| new |\n|---|\n| 2 |"
    assert (before[:13], end, rest) == ("<!-- figures:", "<!-- end of the figures -->", "The rest.\n")


@pytest.mark.parametrize(
    ("code", "error"), [("print('no table')", ValueError), ("raise SystemExit(1)", subprocess.CalledProcessError)]
)
def test_a_page_stays_as_it_is_when_a_command_fails_or_prints_no_table(
    page: Path, code: str, error: type[Exception]
) -> None:
    page.write_text(PAGE.format(code=code))
    with pytest.raises(error):
        figures.main([])
    assert page.read_text() == PAGE.format(code=code)


def test_a_word_that_no_command_has_is_told_with_those_that_there_are() -> None:
    with pytest.raises(SystemExit, match=r"no figures of nothing: .*benchmarks\.house"):
        figures.main(["nothing"])


def test_the_house_is_counted_from_the_syntax_trees(capsys: pytest.CaptureFixture[str]) -> None:
    house.main()
    rows = dict(line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert rows["public attributes that hold a function and can be set"] == "0"
    assert int(rows["lines of iris"].replace(",", "")) > 100_000
