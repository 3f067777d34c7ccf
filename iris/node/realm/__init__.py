"""The realm as operators see it: a survey of its nodes, and the way of one request through it.

Promises: asks only what the owner has given the right to; whatever a node reports is checked before it is counted.  Not
here: what a node reports of itself (iris.node.report), and how any of it is shown (iris.cli.operators).
"""

from iris.node.realm.survey import (
    ClusterView, LinkView, NodeView, RealmSurvey, RealmView, Series, SiteView, open_survey,
)  # fmt: skip
from iris.node.realm.topics import PatternView, TopicsSurvey, TopicsView
from iris.node.realm.trace import RequestTrace, TraceHop, trace_request

__all__ = (
    "ClusterView", "LinkView", "NodeView", "PatternView", "RealmSurvey", "RealmView", "RequestTrace", "Series",
    "SiteView", "TopicsSurvey", "TopicsView", "TraceHop", "open_survey", "trace_request",
)  # fmt: skip
