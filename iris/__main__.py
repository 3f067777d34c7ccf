"""``python -m iris``: the ``iris`` command, where its script is not on the PATH."""

from iris._starting import main

main()
