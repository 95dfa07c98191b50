"""Top draws the dashboard of a running daemon in a terminal. Start at `screen`, then `model`."""
