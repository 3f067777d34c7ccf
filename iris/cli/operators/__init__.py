"""Verbs for operators: ``iris top``, ``iris ping``, ``iris context``.  They ask nodes, and change none."""
