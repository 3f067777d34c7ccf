"""What newcomers look for leads to the right page: each word stands in the index of that page, and of no other.

tests/project/test_site.py asks the search of the built site for the same words.
"""

from __future__ import annotations

from collections import Counter

from docs.pages import ROOT, index_words, pages
from tests.support.newcomers import PAGE_OF


def index() -> dict[str, list[str]]:
    return {
        str(page.relative_to(ROOT / "docs").with_suffix("")): words
        for page in pages()
        if page.is_relative_to(ROOT / "docs") and (words := index_words(page.read_text()))
    }


def test_each_word_of_the_index_leads_to_one_page() -> None:
    counts = Counter(word for words in index().values() for word in words)
    assert [word for word, count in counts.items() if count > 1] == []


def test_the_words_of_newcomers_lead_to_the_right_page() -> None:
    places = {word: page for page, words in index().items() for word in words}
    assert len(PAGE_OF) > 50
    assert {word: places.get(word) for word in PAGE_OF} == PAGE_OF
