"""The door for HTTP: requests, events as server-sent events, tunnels by WebSocket."""
