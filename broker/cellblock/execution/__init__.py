"""Execution takes one request from its text to its response: plan, lease, calls, result.

In: a `codemode.run` request, and a `caller.Caller`: who asks and who watches. Out: one `RunResponse`. It may
import every room below it, never a front-end, and of the worker host `cellblock_worker.worker` (constants and its
table of states) and `cellblock_worker.wire`. Start at `executor`, which makes one `context.RunContext` a run, then
`run` and `calls`; `states` has the table of a run's states.
"""
