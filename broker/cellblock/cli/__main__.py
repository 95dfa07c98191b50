"""`python -m cellblock.cli` is the `cellblock` command."""

import sys

from cellblock.cli import main

if __name__ == "__main__":
    sys.exit(main())
