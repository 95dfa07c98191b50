"""`python -m cellblock.cli` is the `cellblock` command: services and clients that earlier versions set up start it."""

from cellblock.app.cli.main import main

if __name__ == "__main__":
    main()
