"""The ``iris`` command, one module for each group of verbs.  Modules are imported with the first use of their verb."""
