"""Topics of a log: which ones a reader wants, which chunks hold them, and what goes of those that have rules."""
