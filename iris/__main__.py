"""The process of the ``iris`` command, which is ``python -m iris`` where its script is not on the PATH."""

import gc
import sys

from iris.cli.starting import INTERRUPTED, exit_when_interrupted, raise_when_interrupted


def main() -> None:
    """Run the command of this process and exit with its status."""
    exit_when_interrupted()
    from iris.cli.main import main as run_command_line

    gc.enable()
    try:
        raise_when_interrupted()
        run_command_line()
    except KeyboardInterrupt:  # where the command line does not catch it: before it begins, and when it is done
        sys.exit(INTERRUPTED)
    finally:
        exit_when_interrupted()


if __name__ == "__main__":
    main()
