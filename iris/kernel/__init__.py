"""The waist of Iris: errors, ids, limits, wire format, transports and links.  It imports nothing above it."""
