"""Timeline: the last part of a run, as text and as a page."""

from iris.testing.timeline.page import timeline_page
from iris.testing.timeline.text import timeline

__all__ = ("timeline", "timeline_page")
