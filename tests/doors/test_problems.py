"""Problems: the reports of errors to clients."""

from __future__ import annotations

import pytest

import iris
from iris.doors.problems import problem_of


@pytest.mark.parametrize("code", ["", "a b", "a\r\nb", "x retry_after=9", "x" * 129, "\ud800"])
def test_the_word_of_a_member_is_a_word_or_another_one(code: str) -> None:
    told = problem_of(iris.RemoteError(code, "why"))
    assert (told.status, told.code, told.detail) == (502, "error", "why")
    assert problem_of(iris.RemoteError("sold-out", "why")).code == "sold-out"
