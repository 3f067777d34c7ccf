"""``python -m benchmarks``: what ``make bench`` runs."""

from benchmarks.bench import main

main()
