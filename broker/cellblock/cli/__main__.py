"""`python -m cellblock.cli` is the `cellblock` command, for services and for environments without scripts."""

from __future__ import annotations

import sys

from cellblock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
