"""Upstream holds the sessions to MCP servers: it starts or dials them, lists their tools, and calls these.

In: entries of servers and calls of runs. Out: tool definitions, results, and errors that say what is certain.
Start at `registry`, then `session`.
"""
