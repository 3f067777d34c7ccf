"""Publish/subscribe and tunnels between real processes: the figures of docs/explanation/measured/streams.md."""
