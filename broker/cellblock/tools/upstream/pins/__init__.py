"""Pins remember the tool definitions that a person approved, and hold back those that changed.

In: a server's definitions. Out: those that may be used, and what differs in the others. Start at `pins`.
"""
