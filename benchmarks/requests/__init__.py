"""Requests under stress: members that are killed, ten times the load that can be served, broadcasts to many."""
