"""The five messaging patterns: request/reply, broadcast, survey, publish/subscribe, tunnel.

Promises: in every pattern sent = answered + handed over + expired + refused + lost(reason) + waiting; every queue is
bounded, and a refusal is an error or a counter.  Not here: who is a member and who is alive (iris.cluster), and storage
(iris.spark_bridge).
"""
