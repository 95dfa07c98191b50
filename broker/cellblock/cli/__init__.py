"""The `cellblock` command; `python -m cellblock.cli` for services and for environments without scripts."""

import logging
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs one command, and ends quietly at a Ctrl-C, also while its modules load."""
    try:
        from cellblock.app.cli.main import main as run

        code = run()
    except KeyboardInterrupt:
        code = 130
    # Everything is closed and written. Python would now take modules apart, which the system frees at once.
    logging.shutdown()
    if sys.stderr is not None:
        sys.stderr.flush()
    os._exit(code)
