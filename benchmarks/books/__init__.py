"""The books: whether they add up under faults, and what they cost."""
