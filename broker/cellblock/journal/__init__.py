"""Journal writes down what a run's script sees from outside of its own program, and lets another run see the same.

In: what the worker tells of its events, its calls, and their answers. Out: a `Recording`, and the answers of one. It
may import `apart`, `catalog`, `schemas`, `config`, `base` and `cellblock_worker.base`. Start at `journal`, of which a
run that is recorded or replayed has one; `recording` is what there is to keep, `cellrun` the file of one that may leave
the machine. `journals` keeps recordings, encrypted, in the state directory: `store` is the file, over `moves`,
`run_rows` and `tables`; `rows` is what is in it, `cipher` and `key` what it takes. `parked` is what a run waits for,
`owner` who has one that goes on.
"""
