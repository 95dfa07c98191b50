"""A worker is one Deno process for one run: this room boots it, hears it, keeps its caps, and kills it.

In: a run and its limits. Out: frames of the script, and why it ended. It may import `confinement`, `launch`,
`scheduling`, `wire` and `base`. Start at `worker`; `states` has the table of its states.
"""
