"""`python -m cellblock.cli` is the `cellblock` command, for services and for environments without scripts."""

import sys

from cellblock.app.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
