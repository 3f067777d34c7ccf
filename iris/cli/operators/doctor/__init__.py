"""``iris doctor``: examines the set-up of a node, and names what is wrong with the command that mends it.

Each check is a function that takes what it looks at as arguments and returns findings; ``examination.py`` puts them in
order.  The network is looked at by an ordinary node, which announces itself to nobody and leaves no files.  A check
changes nothing, and one that cannot look says so.
"""

from iris.cli.operators.doctor.examination import Setup, examine
from iris.cli.operators.doctor.findings import Code, Diagnosis, Level

__all__ = ("Code", "Diagnosis", "Level", "Setup", "examine")
