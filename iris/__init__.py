"""Iris: programs address services by name, not hosts."""
