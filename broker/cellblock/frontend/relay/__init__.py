"""The relay between a client's stdio and a running daemon. It imports neither the SDK nor pydantic: its client's first
answer would wait for that longer than for all else."""
