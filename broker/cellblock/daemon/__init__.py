"""The daemon is the composition root: it makes a broker's parts in order, reloads them, and ends them.

In: `Settings`. Out: `broker.Broker`, the embedding API. It may import every room below it, and
`cellblock_worker.wire`. Start at `broker`, then `parts` and `assembly`.
"""
