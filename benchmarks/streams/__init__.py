"""Publish/subscribe and tunnels between real processes: the figures of docs/reference/streams.md."""
