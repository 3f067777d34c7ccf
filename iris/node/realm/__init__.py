"""The realm as operators see it: a survey of its nodes, and the route of one request through it.

Promises: asks only what the owner has given the right to; whatever a node reports is checked before it is counted.  Not
here: what a node reports of itself (iris.node.report), and how any of it is shown (iris.cli.operators).
"""

from iris.node.realm.books import BooksSurvey, BooksView
from iris.node.realm.survey import RealmSurvey, open_survey
from iris.node.realm.topics import PatternView, TopicsSurvey, TopicsView
from iris.node.realm.trace import RequestTrace, TraceHop, trace_request
from iris.node.realm.views import (
    AbsentNode, ClusterView, LinkView, NodeView, RealmView, Series, SiteView, nobody_answered,
)  # fmt: skip

__all__ = (
    "AbsentNode", "BooksSurvey", "BooksView", "ClusterView", "LinkView", "NodeView", "PatternView", "RealmSurvey",
    "RealmView", "RequestTrace", "Series", "SiteView", "TopicsSurvey", "TopicsView", "TraceHop", "nobody_answered",
    "open_survey", "trace_request",
)  # fmt: skip
