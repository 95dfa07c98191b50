"""Other published systems beside Cellblock: the same scripts in turns, the same hostile loops (`loadtest --peers`)."""

from benchmarks.peers.measure import main

__all__ = ["main"]
