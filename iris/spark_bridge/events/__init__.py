"""Events as a bridge holds them: columns, runs as they arrive, batches of Arrow from others, and what is missing."""
