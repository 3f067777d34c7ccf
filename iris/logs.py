"""Handlers and formatters for the loggers ``iris`` and ``iris.handlers``.

::

    handler = iris.logs.LimitedHandler()
    handler.setFormatter(iris.logs.JsonFormatter())
    logging.getLogger("iris").addHandler(handler)

``FIELDS`` names what a record may have in its ``extra``; what the fields mean is in docs/reference/telemetry.md.
"""

from iris.node.telemetry.logs import FIELDS, JsonFormatter, LimitedHandler, RateLimit, TextFormatter, fields_of

__all__ = ("FIELDS", "JsonFormatter", "LimitedHandler", "RateLimit", "TextFormatter", "fields_of")
