"""The ``iris`` command, one module for each group of verbs.  Modules are imported with the first use of their verb.

Promises: an error is one line and an exit status; a passphrase never comes from the command line; text from peers
cannot command a terminal.  Not here: anything that a program could not do with ``iris`` itself.
"""
