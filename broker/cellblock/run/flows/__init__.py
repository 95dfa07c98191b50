"""Flows say which calls may carry which data: labels of results, who sees a call's arguments, and rules between them.

In: what the policy says of tools, and results. Out: whether a call is made, asked about or denied. Start at `run_flow`.
"""
