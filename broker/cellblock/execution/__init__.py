"""Execution takes one request from its text to its response: plan, lease, calls, result.

In: a `codemode.run` request and who asks. Out: one `RunResponse`. It may import every room below it, never a
front-end. Start at `executor`, then `run`; `states` has the table of a run's states.
"""
