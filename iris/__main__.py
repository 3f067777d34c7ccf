"""The process of the ``iris`` command, which is ``python -m iris`` where its script is not on the PATH."""

import gc
import sys

from iris.cli.starting import (
    INTERRUPTED,
    exit_when_interrupted,
    ignore_early_hang_ups,
    is_command,
    raise_when_interrupted,
)
from iris.kernel.loading import resume

if is_command():
    exit_when_interrupted()
    ignore_early_hang_ups()
    gc.disable()  # until the command has been loaded


def main() -> None:
    """Run the command of this process and exit with its status."""
    exit_when_interrupted()
    try:
        from iris.cli.main import main as run_command_line
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit("iris: the command needs click: pip install 'iris-mesh[cli]'")
    finally:
        resume()
    try:
        raise_when_interrupted()
        run_command_line()
    except KeyboardInterrupt:  # where the command line does not catch it: before it begins, and when it is done
        sys.exit(INTERRUPTED)
    finally:
        exit_when_interrupted()


if __name__ == "__main__":
    main()
