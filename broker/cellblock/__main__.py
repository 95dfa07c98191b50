"""`python -m cellblock` is the `cellblock` command."""

from cellblock.cli import main

if __name__ == "__main__":
    main()
