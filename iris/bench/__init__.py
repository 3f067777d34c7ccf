"""``iris bench``: measures throughput and latency, on this machine or between two machines of a user.

Promises: a figure is the median of rounds, beside a description of the machine.  Not here: comparisons with other
systems (``make bench``).
"""
