"""The catalog holds every connected server's tools as scripts see them: names, declarations, search.

In: tool definitions and schemas. Out: modules, TypeScript declarations, answers to discovery. It may import `base`,
and constants of `cellblock_worker.confinement` and `cellblock_worker.wire`. Start at `model`; `typescript` writes
declarations, `lookup` answers from outside a script.
"""
