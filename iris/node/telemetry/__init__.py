"""Telemetry: a node's reports to its operators, as log lines, metrics and traces.

Promises: nothing of it is imported before it is used, and prometheus-client, h11 and opentelemetry never unless the
program asks for metrics, or has imported opentelemetry itself; whatever peers choose is bounded before it becomes a
label; no payload, key or credential is in it.  Not here: the counters, which each layer keeps for
``Node.statistics``.
"""
