"""Topics of a log: which ones a reader wants, and which chunks hold them."""
