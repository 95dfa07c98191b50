"""`cellblock top`: the dashboard of a running daemon in a terminal."""
