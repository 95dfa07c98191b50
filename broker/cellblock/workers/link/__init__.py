"""The link carries ZeroMQ messages between this broker and its worker hosts.

In: messages of runs, each to its host. Out: messages of hosts, each to its run. Start at `router`.
"""
