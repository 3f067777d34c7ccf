"""Cluster: which nodes there are, which of them are alive, and which member to ask.

It promises that a listed member has proved that it speaks for its cluster, and that what strangers and peers say costs
bounded memory and bounded dials.  It delivers no messages of users: that is iris.patterns.
"""
