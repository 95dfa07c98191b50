"""Top draws the dashboard of a running daemon in a terminal.

In: the daemon's state as JSON, and keys. Out: lines on the terminal. Start at `screen`, then `model`.
"""
