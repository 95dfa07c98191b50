"""Stdio is the transport of lines: over standard input and output, or a daemon's Unix socket, to which `connect` brings
clients.

In: lines on stdin. Out: lines on stdout, the answers of `mcp` or of a daemon. Start at `server`, then `connect`.
"""
