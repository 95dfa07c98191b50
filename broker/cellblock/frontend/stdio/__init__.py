"""Stdio is the transport over standard input and output: clients' lines in, ours out, or a relay to a daemon.

In: lines on stdin. Out: lines on stdout, the answers of `mcp` or of a daemon. Start at `server`, then `connect`.
"""
