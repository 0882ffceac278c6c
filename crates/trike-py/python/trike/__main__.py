"""The command `trike`, also as `python -m trike`."""

import signal
import sys

from trike._trike import _command


def main() -> int:
    """Runs the command line of the process, and returns its exit code."""
    # The command handles Ctrl-C itself; until then it ends the process, which a handler of Python would only do afterwards.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _command(["trike", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
