"""Where the console script of 0.1.0 looks for the command; one in an editable environment stays after a pull."""

from cellblock.app.cli.main import main as main
