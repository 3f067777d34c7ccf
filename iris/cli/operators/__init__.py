"""Verbs for operators: ``iris top``, ``iris ping``, ``iris context``.  They ask the nodes of a realm, and change none."""
