"""All patterns at once, two sites and a bridge, under faults in virtual time."""
