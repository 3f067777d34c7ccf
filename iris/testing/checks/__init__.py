"""Checks: what must hold of a system whatever goes wrong."""

from iris.testing.checks.history import History
from iris.testing.checks.invariants import check_answers, check_at_most_once, check_books, check_fifo

__all__ = ("History", "check_answers", "check_at_most_once", "check_books", "check_fifo")
