"""One member of a bridge: subscribe, commit in groups, confirm, answer readers and writers.

Promises: an event is acknowledged after it is on disk; every operation checks the caller's rights.
"""
