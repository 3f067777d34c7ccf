"""The door for nng: REQ asks, SURVEYOR surveys, PUSH publishes, SUB follows."""
