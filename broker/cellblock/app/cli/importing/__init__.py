"""Importing takes servers of other MCP clients on this machine into one configuration.

In: the clients' own files. Out: a plan that a person can refuse, then the written configuration. Start at `plan`.
"""
