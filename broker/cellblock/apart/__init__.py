"""Apart does work on others' bytes in processes of their own, so that nobody's bytes hold the broker's loop.

In: a function's name and bytes. Out: bytes, and a bill. It may import `workers`, `config`, `base`, and of the worker
host `cellblock_worker.confinement`, `cellblock_worker.launch` and `cellblock_worker.base`. Start at `pool`.
"""
