"""Hostile workloads beside honest neighbours. See `scripts/bench`."""
