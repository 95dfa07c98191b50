"""Workers gives an execution a worker for one run and a link to it, on this machine or another.

In: a run's limits; at the start `PoolSettings`, `HostSettings` and `Terms`. Out: a lease on a booted worker, and its
messages. It may import `config`, `base`, and of the worker host `cellblock_worker.host` (to start it),
`cellblock_worker.launch`, `cellblock_worker.scheduling`, `cellblock_worker.worker` (for its bounds),
`cellblock_worker.wire` and `cellblock_worker.base`. Start at `pool.pool` for places, `link.router` for messages,
`start` for how both are made, `ray` for hosts that a cluster runs.
"""
